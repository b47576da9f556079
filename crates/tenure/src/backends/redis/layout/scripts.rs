//! The Lua scripts, their arguments, and how their responses are read.
//!
//! A script is made of files of `../lua`: how this layout writes and reads a held lock
//! (`fast_redisson.lua` and `redisson.lua`, or `fast_plain.lua` and `plain.lua`), what scripts try
//! first (`fast.lua`), what the scripts about one lock share (`common.lua`), and its own. Each
//! method of [`Scripts`] passes the arguments in the order in which its file reads them.

use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd, Value};

use super::{Channels, Keys};
use crate::backend::{Claim, Holder, HolderInfo};
use crate::backends::redis::config::{Config, Layout, QueueOrder};
use crate::error::Error;
use crate::token::FencingToken;

/// How many waiters of tenure get the lock in a row while one of Redisson's listens.
const HANDOFFS_IN_A_ROW_MAX: i64 = 16;
/// How long the lock is then left to Redisson: enough for a response on a local network.
const FOREIGN_WINDOW: Duration = Duration::from_millis(5);
/// More waiters than this are not shown.
const SHOWN_WAITERS_MAX: i64 = 1000;
/// What comes before the keys of a script: `EVALSHA`, its hash, and the number of keys.
const HEADER_ARGUMENTS: usize = 3;
const HEADER_BYTES: usize = 60;
/// How many keys a script about one lock has at most.
const KEYS_OF_A_LOCK: usize = 5;

/// All scripts for one configuration.
#[derive(Debug)]
pub(crate) struct Scripts {
    acquire: LuaScript,
    release: LuaScript,
    evict: LuaScript,
    renew: LuaScript,
    show: LuaScript,
    raise_token: LuaScript,
    channels: Arc<Channels>,
    /// For how long a token is remembered.
    memory: Duration,
    handoffs_in_a_row: i64,
}

impl Scripts {
    pub(crate) fn new(config: &Config, channels: &Arc<Channels>) -> Scripts {
        let (write, read) = match config.layout {
            Layout::Plain => {
                (include_str!("../lua/fast_plain.lua"), include_str!("../lua/plain.lua"))
            }
            Layout::Redisson => {
                (include_str!("../lua/fast_redisson.lua"), include_str!("../lua/redisson.lua"))
            }
        };
        let fast = include_str!("../lua/fast.lua");
        let common = include_str!("../lua/common.lua");
        let about_lock = |first, own| LuaScript::new(&[write, fast, first, read, common, own]);
        let alone = |own| LuaScript::new(&[read, own]);
        Scripts {
            acquire: about_lock(
                include_str!("../lua/acquire_first.lua"),
                include_str!("../lua/acquire.lua"),
            ),
            release: about_lock(
                include_str!("../lua/release_first.lua"),
                include_str!("../lua/release.lua"),
            ),
            evict: about_lock("", include_str!("../lua/evict.lua")),
            renew: alone(include_str!("../lua/renew.lua")),
            show: alone(include_str!("../lua/show.lua")),
            raise_token: alone(include_str!("../lua/raise.lua")),
            channels: channels.clone(),
            memory: config.memory,
            handoffs_in_a_row: match (config.order, config.layout) {
                (QueueOrder::Barging, _) => -1,
                (QueueOrder::Fifo, Layout::Redisson) => HANDOFFS_IN_A_ROW_MAX,
                // Foreign clients of this layout poll; whether one of them waits is not known.
                (QueueOrder::Fifo, Layout::Plain) => 0,
            },
        }
    }

    /// Acquires the lock or, with a lease for a queue entry above zero, joins its queue.
    pub(crate) fn acquire(
        &self,
        keys: &Keys,
        claim: &Claim,
        entry_lease: Duration,
    ) -> ScriptCall<'_> {
        let owner = claim.owner.to_string();
        let info = claim.holder_info.encode();
        let own = [
            Argument::Text(&owner),
            Argument::Number(ms(claim.ttl)),
            Argument::Number(ms(entry_lease)),
            Argument::Text(&info),
        ];
        self.about_lock(&self.acquire, keys, &owner, &own)
    }

    /// Releases or cancels; a tombstone stays for so long, or none if that is zero.
    pub(crate) fn release(
        &self,
        keys: &Keys,
        claim: &Claim,
        tombstone_ttl: Duration,
    ) -> ScriptCall<'_> {
        let owner = claim.owner.to_string();
        let own = [Argument::Text(&owner), Argument::Number(ms(tombstone_ttl))];
        self.about_lock(&self.release, keys, &owner, &own)
    }

    pub(crate) fn evict(&self, keys: &Keys, token: FencingToken) -> ScriptCall<'_> {
        self.about_lock(&self.evict, keys, "", &[Argument::Text(&token.to_string())])
    }

    /// Renews claims whose keys lie on one server.
    pub(crate) fn renew(&self, claims: &[&Claim]) -> ScriptCall<'_> {
        let keys: Vec<_> = claims.iter().map(|claim| Keys::of(claim.key.as_str())).collect();
        let keys: Vec<&str> = keys.iter().flat_map(|keys| [&*keys.lock, &*keys.state]).collect();
        let mut call = self.renew.call(&keys, &[Argument::Number(ms(self.memory))]);
        for claim in claims {
            let owner = claim.owner.to_string();
            let token = claim.token.map_or(String::new(), |token| token.to_string());
            call.push(Argument::Text(&owner));
            call.push(Argument::Number(ms(claim.ttl)));
            call.push(Argument::Text(&token));
            call.push(Argument::Number(i64::from(claim.fixed)));
        }
        call
    }

    /// Reads holder and waiters.
    pub(crate) fn show(&self, keys: &Keys) -> ScriptCall<'_> {
        let names = [&*keys.lock, &*keys.state, &*keys.queue, &*keys.entries];
        self.show.call(&names, &[Argument::Number(SHOWN_WAITERS_MAX)])
    }

    /// Makes later grants of this lock have higher tokens, if the claim holds it.
    pub(crate) fn raise_token(
        &self,
        keys: &Keys,
        claim: &Claim,
        token: FencingToken,
    ) -> ScriptCall<'_> {
        let owner = claim.owner.to_string();
        let token = token.to_string();
        let memory = self.memory.max(claim.ttl.saturating_mul(2));
        let arguments =
            [Argument::Text(&owner), Argument::Text(&token), Argument::Number(ms(memory))];
        self.raise_token.call(&[&keys.lock, &keys.state], &arguments)
    }

    /// A call of a script with `common.lua`: what that reads, then what the script itself reads.
    fn about_lock<'a>(
        &self,
        script: &'a LuaScript,
        keys: &Keys,
        owner: &str,
        own: &[Argument<'_>],
    ) -> ScriptCall<'a> {
        let tombstone = keys.tombstone(owner);
        let names = [&keys.lock, &keys.state, &keys.queue, &keys.entries, &tombstone];
        let clients = self.channels.clients(&keys.lock);
        let free = self.channels.free(&keys.lock).unwrap_or_default();
        let mut arguments = vec![
            Argument::Text(self.channels.publish_command()),
            Argument::Text(&clients),
            Argument::Text(&free),
            Argument::Number(ms(self.memory)),
            Argument::Number(self.handoffs_in_a_row),
            Argument::Number(ms(FOREIGN_WINDOW)),
        ];
        arguments.extend_from_slice(own);
        script.call(&names.map(String::as_str), &arguments)
    }
}

/// One script, and the hash by which the server knows it.
#[derive(Debug)]
struct LuaScript {
    text: String,
    hash: String,
}

impl LuaScript {
    fn new(parts: &[&str]) -> LuaScript {
        // The server need not read the comments again after each SCRIPT FLUSH.
        let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim);
        let lines: Vec<_> = lines.filter(|l| !l.is_empty() && !l.starts_with("--")).collect();
        let text = lines.join("\n");
        let hash = redis::Script::new(&text).get_hash().to_owned();
        LuaScript { text, hash }
    }

    fn call(&self, keys: &[&str], arguments: &[Argument<'_>]) -> ScriptCall<'_> {
        let bytes = keys.iter().map(|key| key.len()).sum::<usize>()
            + arguments.iter().map(Argument::len).sum::<usize>();
        let mut command = Cmd::with_capacity(
            HEADER_ARGUMENTS + keys.len() + arguments.len(),
            HEADER_BYTES + bytes,
        );
        command.arg("EVALSHA").arg(&self.hash).arg(keys.len()).arg(keys);
        let mut call = ScriptCall { script: self, command, keys: keys.len() };
        arguments.iter().for_each(|argument| call.push(*argument));
        call
    }
}

/// An argument of a script, beside its keys.
#[derive(Clone, Copy, Debug)]
enum Argument<'a> {
    Number(i64),
    Text(&'a str),
}

impl Argument<'_> {
    /// How long it is, at most.
    fn len(&self) -> usize {
        match self {
            Argument::Number(_) => 20,
            Argument::Text(text) => text.len(),
        }
    }
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct ScriptCall<'a> {
    script: &'a LuaScript,
    command: Cmd,
    /// How many keys it has.
    keys: usize,
}

impl ScriptCall<'_> {
    fn push(&mut self, argument: Argument<'_>) {
        match argument {
            Argument::Number(number) => self.command.arg(number),
            Argument::Text(text) => self.command.arg(text),
        };
    }

    /// Whether the server is busy with it for some microseconds only: it is about one lock.
    pub(crate) fn is_short(&self) -> bool {
        self.keys <= KEYS_OF_A_LOCK
    }

    /// The command that names the script by its hash: what is sent unless the server forgot it.
    pub(crate) fn by_hash(&self) -> &Cmd {
        &self.command
    }

    /// The command with the script's text, by which the server knows its hash again.
    pub(crate) fn by_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

/// Whole milliseconds for the server, rounded up: what the server keeps must not end before the
/// holder's own deadline. A key whose expiry is `t` ms ends when the server's clock shows more than
/// `t`, so that reading that clock in whole milliseconds costs nothing.
pub(crate) fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Reads the holder from a response: `who` is what stands in the lock itself, and empty if it is
/// free.
pub(crate) fn holder(
    who: &str,
    left: &Value,
    token: &Value,
    info: &Value,
    age: &Value,
) -> Option<Holder> {
    if who.is_empty() {
        return None;
    }
    let token: Option<FencingToken> = text(token).parse().ok();
    let info = match token {
        Some(_) => HolderInfo::decode(&text(info)),
        // A foreign client's lock holds nothing but its id.
        None => HolderInfo::new(who, "", 0, ""),
    };
    let mut holder = Holder::new(&info);
    holder.token = token;
    holder.held_for = millis(age);
    holder.ttl_left = millis(left);
    Some(holder)
}

pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// Reads a time in ms. One below zero is not known.
pub(crate) fn millis(value: &Value) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(number(value)?).ok()?))
}

/// Reads a text, of which a foreign client may have written any bytes.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// A script responded with something that it cannot respond with.
pub(crate) fn unexpected(script: &str, response: &Value) -> Error {
    let what = format_args!("{response:?} to the script `{script}`; please report it");
    Error::unexpected_response("redis", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_millisecond_is_a_whole_one_at_the_server() {
        let spans = [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)];
        for (ns, whole) in spans {
            assert_eq!(ms(Duration::from_nanos(ns)), whole);
        }
        assert_eq!(ms(Duration::MAX), i64::MAX);
    }
}
