//! `Config`, `Key` and `FencingToken` in configuration files and messages; what is known about a
//! busy or lost lock as JSON, with the names that the program `tenure` prints: they are a contract.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::backend::{Busy, Holder, Holding, Lost, LostReason, Mode, Waiter};
use crate::config::Config;
use crate::key::Key;
use crate::support::percent;
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

/// `{"key", "holder", "holders", "ahead", "retry_after_ms", "waited_ms"}`: the body of a 409.
/// `holder` is null where the server cannot tell.
impl Serialize for Busy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Row<'a> {
            key: &'a Key,
            holder: Option<&'a Holder>,
            holders: u32,
            ahead: Option<u32>,
            retry_after_ms: Option<u64>,
            waited_ms: u64,
        }
        let row = Row {
            key: &self.key,
            holder: self.holder.as_deref(),
            holders: self.holders,
            ahead: self.ahead,
            retry_after_ms: self.retry_after.map(millis),
            waited_ms: millis(self.waited),
        };
        row.serialize(serializer)
    }
}

/// `{"owner", "host", "pid", "mode", "permits", "token", "ttl_left_ms", "held_for_ms", "note"}`.
/// `permits` is there only if `mode` is `permits`.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        HolderFields::new(self).serialize(serializer)
    }
}

/// The row of `tenure ls --json`: `key`, the fields of its oldest [`Holder`], `holders` (all of
/// them), `waiters` (how many) and `waiting` (each of them).
impl Serialize for Holding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Row<'a> {
            key: &'a Key,
            #[serde(flatten)]
            holder: HolderFields<'a>,
            holders: &'a [Holder],
            waiters: usize,
            waiting: &'a [Waiter],
        }
        let row = Row {
            key: &self.key,
            holder: HolderFields::new(self.holder()),
            holders: &self.holders,
            waiters: self.waiters.len(),
            waiting: &self.waiters,
        };
        row.serialize(serializer)
    }
}

#[derive(serde::Serialize)]
struct HolderFields<'a> {
    owner: &'a str,
    host: &'a str,
    pid: u32,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    token: Option<FencingToken>,
    ttl_left_ms: Option<u64>,
    held_for_ms: Option<u64>,
    note: &'a str,
}

impl HolderFields<'_> {
    fn new(holder: &Holder) -> HolderFields<'_> {
        HolderFields {
            owner: &holder.owner,
            host: &holder.host,
            pid: holder.pid,
            mode: holder.mode.name(),
            permits: permits(holder.mode),
            token: holder.token,
            ttl_left_ms: holder.ttl_left.map(millis),
            held_for_ms: holder.held_for.map(millis),
            note: &holder.note,
        }
    }
}

/// How many permits, of a claim to permits.
fn permits(mode: Mode) -> Option<u32> {
    (!mode.is_lock()).then(|| mode.weight())
}

/// `{"owner", "host", "pid", "mode", "permits", "waiting_for_ms"}`. `permits` is there only if
/// `mode` is `permits`.
impl Serialize for Waiter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Row<'a> {
            owner: &'a str,
            host: &'a str,
            pid: u32,
            mode: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            permits: Option<u32>,
            waiting_for_ms: Option<u64>,
        }
        let row = Row {
            owner: &self.owner,
            host: &self.host,
            pid: self.pid,
            mode: self.mode.name(),
            permits: permits(self.mode),
            waiting_for_ms: self.waiting_for.map(millis),
        };
        row.serialize(serializer)
    }
}

/// `{"key", "token", "reason"}`.
impl Serialize for Lost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Row<'a> {
            key: &'a Key,
            token: FencingToken,
            reason: LostReason,
        }
        Row { key: self.key(), token: self.token(), reason: self.reason() }.serialize(serializer)
    }
}

/// [`LostReason::as_str`].
impl Serialize for LostReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// From the URL, as a string; or from a table of `url` and options, each as in the URL, and
/// `password`, which need not be escaped here. There is no way back: a configuration may hold a
/// secret.
///
/// ```
/// let config = r#"{"url": "memory:", "prefix": "shop/", "ttl": "10s"}"#;
/// let config: tenure::Config = serde_json::from_str(config)?;
/// # Ok::<(), serde_json::Error>(())
/// ```
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        deserializer.deserialize_any(UrlOrTable)
    }
}

struct UrlOrTable;

impl<'de> Visitor<'de> for UrlOrTable {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL of tenure, or a table of `url` and options")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<Config, E> {
        url.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Config, A::Error> {
        let mut url = None;
        let mut password = None;
        let mut options = Vec::new();
        while let Some(name) = table.next_key::<String>()? {
            let OptionValue(value) = table.next_value()?;
            match name.as_str() {
                "url" => url = Some(value),
                "password" => password = Some(value),
                _ => options.push(format!("{}={}", escape(&name), escape(&value))),
            }
        }
        let mut url = url.ok_or_else(|| A::Error::missing_field("url"))?;
        for option in options {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&option);
        }
        let config: Config = url.parse().map_err(A::Error::custom)?;
        Ok(match password {
            Some(password) => config.password(password),
            None => config,
        })
    }
}

fn escape(text: &str) -> String {
    percent::encode(text, |_, c| !c.is_ascii_alphanumeric())
}

/// The value of an option: text, a number or a boolean, as the text that a URL would have.
struct OptionValue(String);

impl<'de> Deserialize<'de> for OptionValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OptionValue, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = OptionValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the value of an option: text or a whole number")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<OptionValue, E> {
                Ok(OptionValue(text.to_owned()))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<OptionValue, E> {
                Ok(OptionValue(number.to_string()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<OptionValue, E> {
                Ok(OptionValue(number.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::HolderInfo;

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

    #[test]
    fn a_configuration_may_be_a_table() {
        let json = r#"{"url": "redis://me@h/3", "password": "a/b@c?d", "ttl": "5s", "replicas": 2,
            "owner": "a&b=c"}"#;
        let config: Config = serde_json::from_str(json).unwrap();
        assert!(!format!("{config:?}").contains("a/b"));
        assert!(format!("{config:?}").contains("5s"), "{config:?}");
        for (json, part) in [
            (r#"{"ttl": "5s"}"#, "missing field `url`"),
            (r#"{"url": "memory:", "ttl": 5}"#, "not a duration"),
            (r#"{"url": "memory:", "ttl": [1]}"#, "the value of an option"),
            (r#"{"url": "memory:?ttl=1s", "ttl": "2s"}"#, "given twice"),
            ("7", "a URL of tenure"),
        ] {
            let error = serde_json::from_str::<Config>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn what_is_shown_of_a_lock_has_the_names_of_the_program() {
        let key = Key::new("a").unwrap();
        let token = FencingToken::new(7).unwrap();
        let info = HolderInfo::new("web", "h", 72, HolderInfo::run_note(71, "why"));
        let mut holder = Holder::new(&info);
        holder.token = Some(token);
        holder.held_for = Some(Duration::from_millis(1500));
        let shown = serde_json::json!({"owner": "web", "host": "h", "pid": 71,
            "mode": "exclusive", "token": 7, "ttl_left_ms": null, "held_for_ms": 1500,
            "note": "why"});
        assert_eq!(serde_json::to_value(&holder).unwrap(), shown);
        let mut holding = Holding::new(key.clone(), holder.clone());
        holding.waiters.push(Waiter::new(&info));
        let mut row = shown.clone();
        row["key"] = "a".into();
        row["holders"] = serde_json::json!([shown]);
        row["waiters"] = 1.into();
        row["waiting"] = serde_json::json!([{"owner": "web", "host": "h", "pid": 71,
            "mode": "exclusive", "waiting_for_ms": null}]);
        assert_eq!(serde_json::to_value(&holding).unwrap(), row);
        let mut busy = Busy::new(key.clone());
        busy.holder = Some(Box::new(holder));
        busy.holders = 1;
        busy.waited = Duration::from_millis(200);
        let json = serde_json::json!({"key": "a", "holder": shown, "holders": 1, "ahead": null,
            "retry_after_ms": null, "waited_ms": 200});
        assert_eq!(serde_json::to_value(&busy).unwrap(), json);
        let lost = Lost::new(key, token, LostReason::TakenOver);
        let json = serde_json::json!({"key": "a", "token": 7, "reason": "taken_over"});
        assert_eq!(serde_json::to_value(&lost).unwrap(), json);
    }
}
