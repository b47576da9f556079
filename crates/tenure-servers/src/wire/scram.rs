//! The login of PostgreSQL (SCRAM-SHA-256, RFC 7677): both sides prove that they know the password
//! without sending it.

use std::io;

use sha2::{Digest, Sha256};

use super::unexpected;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// One login.
pub(super) struct Scram<'a> {
    password: &'a str,
    nonce: String,
}

impl<'a> Scram<'a> {
    /// `nonce` must never have been used before.
    pub(super) fn new(password: &'a str, nonce: String) -> Self {
        Self { password, nonce }
    }

    /// The first message of the client.
    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.bare())
    }

    fn bare(&self) -> String {
        format!("n=,r={}", self.nonce)
    }

    /// The proof for the server's challenge.
    pub(super) fn proof(&self, challenge: &str) -> io::Result<String> {
        let field = |name| challenge.split(',').find_map(|part| part.strip_prefix(name));
        let (Some(nonce), Some(salt), Some(rounds)) = (field("r="), field("s="), field("i="))
        else {
            return Err(unexpected("no challenge of a login"));
        };
        if !nonce.starts_with(&self.nonce) {
            return Err(unexpected("the challenge of another login"));
        }
        let salt = from_base64(salt).ok_or_else(|| unexpected("a salt that cannot be read"))?;
        let salted = salted(self.password, &salt, rounds.parse().map_err(unexpected)?);
        let key = hmac(&salted, b"Client Key");
        let last = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{last}", self.bare());
        let signature = hmac(&Sha256::digest(key), all.as_bytes());
        let proof: Vec<u8> = key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
        Ok(format!("{last},p={}", to_base64(&proof)))
    }
}

/// PBKDF2 of one block.
fn salted(password: &str, salt: &[u8], rounds: u32) -> [u8; 32] {
    let mut round = hmac(password.as_bytes(), &[salt, &[0, 0, 0, 1]].concat());
    let mut all = round;
    for _ in 1..rounds {
        round = hmac(password.as_bytes(), &round);
        all.iter_mut().zip(round).for_each(|(all, byte)| *all ^= byte);
    }
    all
}

/// HMAC-SHA-256 with a key that is not longer than a block.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text);
    let outer = Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
        let bits = bits << (8 * (3 - three.len()));
        for index in 0..4 {
            let digit = (bits >> (18 - 6 * index)) as usize & 63;
            text.push(if index <= three.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut bits = 0u32;
    let mut count = 0;
    for letter in text.trim_end_matches('=').bytes() {
        let digit = DIGITS.iter().position(|&digit| digit == letter)?;
        bits = bits << 6 | u32::try_from(digit).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_gives_its_proof() {
        let scram = Scram { password: "pencil", nonce: "rOprNGfwEbeRWgbNEkqO".into() };
        // The example has a user name; PostgreSQL gets it before this exchange.
        let salt = from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let key = salted(scram.password, &salt, 4096);
        assert_eq!(
            to_base64(&hmac(&key, b"Server Key")),
            "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let challenge = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let all = format!("n=user,r={},{challenge},c=biws,r={nonce}", scram.nonce);
        let signature = hmac(&hmac(&key, b"Server Key"), all.as_bytes());
        assert_eq!(to_base64(&signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn base64_decodes_what_it_encoded() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", &[0, 255, 7, 128]] {
            assert_eq!(from_base64(&to_base64(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(from_base64("*"), None);
    }
}
