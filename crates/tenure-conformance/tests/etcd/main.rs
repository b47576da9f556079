//! What only a real etcd can show: faults of members and of the way to them, `etcdctl lock` on the
//! same keys, logins, and the number of requests.
//! `cargo test -p tenure-conformance --test etcd -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod doctor;
mod faults;
mod links;
mod strangers;
mod traffic;

use anyhow::{Context, Result};
use tenure::backend::Owner;
use tenure_conformance::trials;
use tenure_servers::Node;
use tenure_servers::wire::http::post;

fn main() {
    let modules = [doctor::CASES, faults::CASES, links::CASES, strangers::CASES, traffic::CASES];
    trials::main(4, &modules)
}

/// A name that no other case uses.
pub(crate) fn name() -> String {
    format!("k-{}", Owner::random().to_string().split_at(8).0)
}

/// A request to the JSON gateway of a node.
pub(crate) fn gateway(node: &Node, path: &str, body: &str) -> Result<String> {
    post(node.port(), path, body).with_context(|| format!("{path} {body}"))
}

/// Bytes as the gateway wants them.
pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.as_ref().chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let number = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * at) & 63) as usize];
            text.push(if at > chunk.len() { '=' } else { digit.into() });
        }
    }
    text
}
