//! The scripts, each made of the layout's part, what they share and its own.

use redis::{Cmd, Script};

use super::settings::Layout;

/// All scripts of one layout.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) take: Source,
    pub(super) release: Source,
    pub(super) evict: Source,
    pub(super) renew: Source,
    pub(super) show: Source,
    pub(super) raise: Source,
}

impl Scripts {
    pub(super) fn of(layout: Layout) -> Scripts {
        let layout = match layout {
            Layout::Plain => include_str!("lua/plain.lua"),
            Layout::Redisson => include_str!("lua/redisson.lua"),
        };
        let common = include_str!("lua/common.lua");
        Scripts {
            take: Source::of(&[layout, common, include_str!("lua/take.lua")]),
            release: Source::of(&[layout, common, include_str!("lua/release.lua")]),
            evict: Source::of(&[layout, common, include_str!("lua/evict.lua")]),
            renew: Source::of(&[layout, include_str!("lua/renew.lua")]),
            show: Source::of(&[layout, include_str!("lua/show.lua")]),
            raise: Source::of(&[layout, include_str!("lua/raise.lua")]),
        }
    }
}

/// One script, and the hash by which the server knows it.
#[derive(Debug)]
pub(super) struct Source {
    text: String,
    hash: String,
}

impl Source {
    fn of(parts: &[&str]) -> Source {
        // Comments are for us; the server need not read them again after each SCRIPT FLUSH.
        let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim);
        let lines: Vec<_> = lines.filter(|l| !l.is_empty() && !l.starts_with("--")).collect();
        let text = lines.join("\n");
        let hash = Script::new(&text).get_hash().to_owned();
        Source { text, hash }
    }

    pub(super) fn call(&self, keys: &[&str], arguments: &[Argument<'_>]) -> Call<'_> {
        let mut tail = Vec::with_capacity(keys.len() + arguments.len());
        tail.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
        tail.extend(arguments.iter().map(Argument::bytes));
        Call { source: self, keys: keys.len(), tail }
    }
}

/// What a script is given beside its keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'a> {
    Number(i64),
    Text(&'a str),
}

impl Argument<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Argument::Number(number) => number.to_string().into_bytes(),
            Argument::Text(text) => text.as_bytes().to_vec(),
        }
    }
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(super) struct Call<'a> {
    source: &'a Source,
    keys: usize,
    tail: Vec<Vec<u8>>,
}

impl Call<'_> {
    /// By its hash: what is sent unless the server forgot it.
    pub(super) fn by_hash(&self) -> Cmd {
        self.build("EVALSHA", &self.source.hash)
    }

    /// With its text, which also makes the server know it again.
    pub(super) fn by_text(&self) -> Cmd {
        self.build("EVAL", &self.source.text)
    }

    fn build(&self, verb: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(self.keys).arg(&self.tail);
        cmd
    }
}
