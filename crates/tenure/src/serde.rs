//! `Config`, `Key` and `FencingToken` in configuration files and messages.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::config::Config;
use crate::key::Key;
use crate::token::FencingToken;

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FencingToken, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = FencingToken;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a fencing token, a number from 1 to {}", i64::MAX)
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<FencingToken, E> {
                let token = FencingToken::new(number);
                token
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(number), &self))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<FencingToken, E> {
                let unexpected = serde::de::Unexpected::Signed(number);
                let number = u64::try_from(number).ok().and_then(FencingToken::new);
                number.ok_or_else(|| E::invalid_value(unexpected, &self))
            }
        }
        deserializer.deserialize_u64(Number)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        let name = String::deserialize(deserializer)?;
        Key::new(name).map_err(D::Error::custom)
    }
}

/// From the URL, as a string. There is no way back: a configuration may hold a secret.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let url = String::deserialize(deserializer)?;
        url.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_number_and_a_key_a_string() {
        let token = FencingToken::new(42).unwrap();
        assert_eq!(serde_json::to_string(&token).unwrap(), "42");
        assert_eq!(serde_json::from_str::<FencingToken>("42").unwrap(), token);
        assert!(serde_json::from_str::<FencingToken>("0").is_err());
        assert!(serde_json::from_str::<FencingToken>("-1").is_err());
        let key = Key::new("orders/42").unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), "\"orders/42\"");
        assert!(serde_json::from_str::<Key>("\"\"").is_err());
    }

    #[test]
    fn a_configuration_is_its_url() {
        let config: Config = serde_json::from_str("\"memory:?ttl=5s\"").unwrap();
        assert!(format!("{config:?}").contains("memory:"));
        let error = serde_json::from_str::<Config>("\"memory:?ttl=5\"").unwrap_err().to_string();
        assert!(error.contains("not a duration"), "{error}");
    }
}
