//! Cases for etcd only: faults of members and of the network, `etcdctl lock` on the same keys,
//! logins, and the number of requests.
//! `cargo test -p tenure-conformance --test etcd -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod admin;
mod doctor;
mod faults;
mod foreign_clients;
mod handoffs;
mod login;
mod members;
mod mixed;
mod modes;
mod network;
mod traffic;

use anyhow::{Context, Result};
use tenure::backend::Owner;
use tenure_conformance::trials;
use tenure_servers::Node;
use tenure_servers::wire::http::post;

fn main() {
    let modules = [admin::CASES, doctor::CASES, faults::CASES, foreign_clients::CASES];
    let more = [login::CASES, members::CASES, network::CASES, traffic::CASES];
    let of_modes = [mixed::CASES, modes::CASES, handoffs::CASES];
    trials::main(4, &[&modules[..], &more[..], &of_modes[..]].concat())
}

/// A name that no other case uses.
pub(crate) fn name() -> String {
    format!("k-{}", Owner::random().to_string().split_at(8).0)
}

/// A request to the JSON gateway of a node.
pub(crate) fn gateway(node: &Node, path: &str, body: &str) -> Result<String> {
    post(node.port(), path, body).with_context(|| format!("{path} {body}"))
}

/// Switches logins on: `root` may do everything, `me` may use the keys below `app/`.
pub(crate) fn require_login(node: &Node) -> Result<()> {
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"r"}"#.to_owned()),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
        ("/v3/auth/user/add", r#"{"name":"me","password":"secret"}"#.to_owned()),
        ("/v3/auth/role/add", r#"{"name":"locker"}"#.to_owned()),
        ("/v3/auth/user/grant", r#"{"user":"me","role":"locker"}"#.to_owned()),
        ("/v3/auth/role/grant", grant("app/", "app0")),
        ("/v3/auth/enable", "{}".to_owned()),
    ] {
        // Later versions create the role `root` themselves.
        if let Err(error) = gateway(node, path, &body) {
            if body.contains(r#""role":"root""#) {
                gateway(node, "/v3/auth/role/add", r#"{"name":"root"}"#)?;
                gateway(node, path, &body)?;
            } else {
                return Err(error);
            }
        }
    }
    Ok(())
}

fn grant(from: &str, to: &str) -> String {
    let key = base64(from);
    let end = base64(to);
    format!(r#"{{"name":"locker","perm":{{"permType":2,"key":"{key}","range_end":"{end}"}}}}"#)
}

/// Bytes as the gateway expects them.
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
