//! The Lua scripts and their arguments.
//!
//! A script is made of files of `../lua`: how this layout writes and reads a held lock
//! (`fast_redisson.lua` and `redisson.lua`, or `fast_plain.lua` and `plain.lua`), what the URL
//! says (`config.lua`), what scripts try first (`acquire_first.lua`, `release_first.lua`), which
//! token is whose (`token.lua`), what the scripts about one lock share (`common.lua`,
//! `holders.lua`, `handoff.lua`), and its own. Each method of [`Scripts`] passes the arguments in
//! the order in which its file reads them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd, RedisWrite};

use super::mode::ModeText;
use super::{Channels, Keys};
use crate::backend::{Claim, Mode};
use crate::backends::redis::config::{Config, Layout, QueueOrder};
use crate::backends::redis::connection::BatchPart;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// How many waiters of tenure get the lock in a row while one of Redisson's listens.
const HANDOFFS_IN_A_ROW_MAX: i64 = 16;
/// How long the lock is then left to Redisson: enough for a response on a local network.
const FOREIGN_WINDOW: Duration = Duration::from_millis(5);
/// How many waiters are granted by one script: 256 messages keep the server busy for some ms.
const RUN_MAX: i64 = 256;
/// More waiters than this are not shown.
const SHOWN_WAITERS_MAX: i64 = 1000;
/// What comes before the keys of a script: `EVALSHA`, its hash, and the number of keys.
const HEADER_ARGUMENTS: usize = 3;
const HEADER_BYTES: usize = 60;
/// How many keys a script about one lock has at most, and how many other arguments.
pub(crate) const KEYS_OF_A_LOCK: usize = 7;
const ARGUMENTS_MAX: usize = 9;
/// How long the name of a key or channel is beside that of its lock, in bytes, nearly always.
const NAME_BYTES: usize = 28;
/// How long the arguments of a script about one lock are, beside names and holder info: the owner
/// twice, and numbers.
const ARGUMENTS_BYTES: usize = 200;
/// How long the arguments of one renewal are, beside the name of the lock.
const RENEWAL_BYTES: usize = 110;

/// All scripts for one configuration.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Acquires and releases of many claims at once.
    pub(crate) batch: Arc<BatchScript>,
    acquire: LuaScript,
    release: LuaScript,
    evict: LuaScript,
    renew: LuaScript,
    renew_shared: LuaScript,
    show: LuaScript,
    raise_token: LuaScript,
    channels: Arc<Channels>,
    /// For how long a token is remembered.
    memory: Duration,
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
        let token = include_str!("../lua/token.lua");
        let common = [
            read,
            token,
            include_str!("../lua/common.lua"),
            include_str!("../lua/holders.lua"),
            include_str!("../lua/handoff.lua"),
        ]
        .join("\n");
        let constants = constants(config);
        let about_lock = |first, own| LuaScript::new(&[&constants, write, first, &common, own]);
        let alone = |own| LuaScript::new(&[&constants, read, token, own]);
        let acquire_first = include_str!("../lua/acquire_first.lua");
        let acquire = include_str!("../lua/acquire.lua");
        let release_first = include_str!("../lua/release_first.lua");
        let release = include_str!("../lua/release.lua");
        let function = |name: &str, first: &str, own: &str| {
            format!("local function {name}(KEYS, ARGV)\n{first}\n{common}\n{own}\nend")
        };
        let batch = [
            &constants,
            write,
            &function("acquire", acquire_first, acquire),
            &function("release", release_first, release),
            include_str!("../lua/batch.lua"),
        ];
        Scripts {
            batch: Arc::new(BatchScript(LuaScript::new(&batch))),
            acquire: about_lock(acquire_first, acquire),
            release: about_lock(release_first, release),
            evict: about_lock("", include_str!("../lua/evict.lua")),
            renew: alone(include_str!("../lua/renew.lua")),
            renew_shared: alone(include_str!("../lua/renew_shared.lua")),
            show: alone(include_str!("../lua/show.lua")),
            raise_token: alone(include_str!("../lua/raise.lua")),
            channels: channels.clone(),
            memory: config.memory,
        }
    }

    /// Acquires the lock or, with a lease for a queue entry above zero, joins its queue. With a
    /// token, downgrades that grant.
    pub(crate) fn acquire(
        &self,
        keys: Keys<'_>,
        claim: &Claim,
        entry_lease: Duration,
    ) -> ScriptCall<'_> {
        let info = claim.holder_info.encoded();
        let mut call =
            self.about_lock(&self.acquire, keys, keys.tombstone(claim.owner), info.len());
        call.push(claim.owner);
        call.push(ms(claim.ttl));
        call.push(ms(entry_lease));
        call.push(info);
        call.part = Some(BatchPart::Acquire);
        if claim.mode != Mode::Exclusive || claim.token.is_some() {
            call.push(ModeText(claim.mode));
            call.push_token(claim.token);
            call.part = Some(BatchPart::AcquireMode);
        }
        call
    }

    /// Releases or cancels; a tombstone stays for so long, or none if that is zero.
    pub(crate) fn release(
        &self,
        keys: Keys<'_>,
        claim: &Claim,
        tombstone_ttl: Duration,
    ) -> ScriptCall<'_> {
        let mut call = self.about_lock(&self.release, keys, keys.tombstone(claim.owner), 0);
        call.push(claim.owner);
        call.push(ms(tombstone_ttl));
        call.part = Some(BatchPart::Release);
        call
    }

    pub(crate) fn evict(&self, keys: Keys<'_>, token: FencingToken) -> ScriptCall<'_> {
        // It is about no claim: no tombstone is read or written.
        let mut call = self.about_lock(&self.evict, keys, keys.state(), 0);
        call.push(token);
        call
    }

    /// Renews claims whose keys lie on one server, and that hold exclusively.
    pub(crate) fn renew(&self, claims: &[&Claim]) -> ScriptCall<'_> {
        self.renewal(&self.renew, claims, 2, |call, keys| {
            call.push(keys.lock);
            call.push(keys.state());
        })
    }

    /// Renews claims whose keys lie on one server, and that hold beside others.
    pub(crate) fn renew_shared(&self, claims: &[&Claim]) -> ScriptCall<'_> {
        self.renewal(&self.renew_shared, claims, 4, |call, keys| {
            call.push(keys.lock);
            call.push(keys.state());
            call.push(keys.ends());
            call.push(keys.grants());
        })
    }

    /// A call that renews claims, with so many keys for each, which `push_keys` adds.
    fn renewal<'a>(
        &self,
        script: &'a LuaScript,
        claims: &[&Claim],
        keys: usize,
        push_keys: impl Fn(&mut ScriptCall<'a>, Keys<'_>),
    ) -> ScriptCall<'a> {
        let names: usize = claims.iter().map(|claim| claim.key.as_str().len()).sum();
        let bytes = keys * names + claims.len() * RENEWAL_BYTES * keys / 2;
        let mut call = script.call(keys * claims.len(), 1 + 4 * claims.len(), bytes);
        for claim in claims {
            push_keys(&mut call, Keys::of(claim.key.as_str()));
        }
        call.push(ms(self.memory));
        for claim in claims {
            call.push(claim.owner);
            call.push(ms(claim.ttl));
            call.push_token(claim.token);
            call.push(i64::from(claim.fixed));
        }
        call
    }

    /// Reads holders and waiters.
    pub(crate) fn show(&self, keys: Keys<'_>) -> ScriptCall<'_> {
        let mut call = self.show.call(6, 1, 6 * (keys.lock.len() + NAME_BYTES));
        call.push(keys.lock);
        call.push(keys.state());
        call.push(keys.queue());
        call.push(keys.entries());
        call.push(keys.ends());
        call.push(keys.grants());
        call.push(SHOWN_WAITERS_MAX);
        call
    }

    /// Makes later grants of this lock have higher tokens, if the claim holds it.
    pub(crate) fn raise_token(
        &self,
        keys: Keys<'_>,
        claim: &Claim,
        token: FencingToken,
    ) -> ScriptCall<'_> {
        let memory = self.memory.max(claim.ttl.saturating_mul(2));
        let mut call = self.raise_token.call(3, 3, 3 * (keys.lock.len() + NAME_BYTES));
        call.push(keys.lock);
        call.push(keys.state());
        call.push(keys.grants());
        call.push(claim.owner);
        call.push(token);
        call.push(ms(memory));
        call
    }

    /// A call of a script with `common.lua`, with what that reads. What the script itself reads is
    /// to be added, with `more` bytes beside owner and numbers.
    fn about_lock<'a>(
        &self,
        script: &'a LuaScript,
        keys: Keys<'_>,
        tombstone: impl fmt::Display,
        more: usize,
    ) -> ScriptCall<'a> {
        let bytes = 8 * (keys.lock.len() + NAME_BYTES) + ARGUMENTS_BYTES + more;
        let mut call = script.call(KEYS_OF_A_LOCK, ARGUMENTS_MAX, bytes);
        call.push(keys.lock);
        call.push(keys.state());
        call.push(keys.queue());
        call.push(keys.entries());
        call.push(tombstone);
        call.push(keys.ends());
        call.push(keys.grants());
        call.push(self.channels.publish_command());
        call.push(self.channels.clients(keys.lock));
        match self.channels.free(keys.lock) {
            Some(channel) => call.push(channel),
            None => call.push(""),
        }
        call
    }
}

/// The text of `lua/config.lua` for this configuration.
fn constants(config: &Config) -> String {
    let handoffs_in_a_row = match (config.order, config.layout) {
        (QueueOrder::Barging, _) => -1,
        (QueueOrder::Fifo, Layout::Redisson) => HANDOFFS_IN_A_ROW_MAX,
        // Foreign clients of this layout poll; whether one of them waits is not known.
        (QueueOrder::Fifo, Layout::Plain) => 0,
    };
    include_str!("../lua/config.lua")
        .replace("$memory", &ms(config.memory).to_string())
        .replace("$row_max", &handoffs_in_a_row.to_string())
        .replace("$grace", &ms(FOREIGN_WINDOW).to_string())
        .replace("$range_size", &TOKENS_PER_GRANT.to_string())
        .replace("$run_max", &RUN_MAX.to_string())
}

/// The script for many claims at once: see `lua/batch.lua`.
#[derive(Debug)]
pub(crate) struct BatchScript(LuaScript);

impl BatchScript {
    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn hash(&self) -> &str {
        &self.0.hash
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

    /// A call with so many keys, which are to be added, and after them the other arguments. Room is
    /// made for all of them at once.
    fn call(&self, keys: usize, arguments: usize, bytes: usize) -> ScriptCall<'_> {
        let mut command =
            Cmd::with_capacity(HEADER_ARGUMENTS + keys + arguments, HEADER_BYTES + bytes);
        command.arg("EVALSHA").arg(&self.hash);
        command.write_arg_fmt(keys);
        ScriptCall { script: self, command, keys, part: None }
    }
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct ScriptCall<'a> {
    script: &'a LuaScript,
    command: Cmd,
    /// How many keys it has.
    keys: usize,
    part: Option<BatchPart>,
}

impl ScriptCall<'_> {
    /// Adds a key or another argument.
    fn push(&mut self, argument: impl fmt::Display) {
        self.command.write_arg_fmt(argument);
    }

    /// Adds a token; empty if there is none.
    fn push_token(&mut self, token: Option<FencingToken>) {
        match token {
            Some(token) => self.push(token),
            None => self.push(""),
        }
    }

    /// Which part of a batch it may be.
    pub(crate) fn part(&self) -> Option<BatchPart> {
        self.part
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
