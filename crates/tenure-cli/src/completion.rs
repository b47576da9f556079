//! What a shell offers when the user presses Tab: verbs and flags, the keys that are held, and
//! commands. The script of `tenure completions` calls this program with a variable set, and this
//! module responds.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};

use crate::args::Args;
use crate::store::Store;
use crate::{exit, waiting};

/// Names the shell. Only the script of `tenure completions` sets it.
pub(crate) const VARIABLE: &str = "TENURE_COMPLETE";

/// How long the server may take. The user waits for the shell meanwhile.
const LIMIT: Duration = Duration::from_secs(1);

/// Responds to a shell, if it was a shell that started this program. Returns the exit code.
pub(crate) fn respond() -> Option<u8> {
    std::env::var_os(VARIABLE).filter(|shell| !shell.is_empty())?;
    let folder = std::env::current_dir().ok();
    let completer = CompleteEnv::with_factory(Args::command).var(VARIABLE);
    let responded = completer.try_complete(std::env::args_os(), folder.as_deref());
    Some(if responded.is_ok() { exit::DONE } else { exit::USAGE })
}

/// The held keys that begin with this. Whatever fails is no reason to write over the command line
/// of the user: then there are none.
pub(crate) fn keys(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = current.to_str().and_then(held_keys).unwrap_or_default();
    found.into_iter().filter(|key| is_plain(key)).map(CompletionCandidate::new).collect()
}

/// The held keys, or behind `--` a command: clap counts a word there as one more key.
pub(crate) fn keys_or_command(current: &OsStr) -> Vec<CompletionCandidate> {
    match place_in_command() {
        Some(place) => Command.complete_at(place, current),
        None => keys(current),
    }
}

/// How many words stand between `--` and the word that is being completed; `None` before `--`.
fn place_in_command() -> Option<usize> {
    // The script of the shell puts a `--` of its own before the command line.
    let words: Vec<OsString> =
        std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let current = std::env::var("_CLAP_COMPLETE_INDEX").ok();
    let current = current.and_then(|index| index.parse().ok());
    let current = current.unwrap_or(words.len().saturating_sub(1));
    let separator = words.get(..current)?.iter().position(|word| word == "--")?;
    Some(current - separator - 1)
}

fn held_keys(prefix: &str) -> Option<Vec<String>> {
    let store = Store::find(url_of_command_line(), None).ok()?;
    let config = store.config().ok()?.outage(Duration::ZERO);
    let end = Instant::now() + LIMIT;
    let client = waiting::within(Some(end), config.connect())?.ok()?;
    let held = waiting::within(Some(end), client.list(prefix))?.ok()?;
    let mut keys: Vec<_> = held.iter().map(|holding| holding.key.to_string()).collect();
    keys.sort();
    Some(keys)
}

/// Whether a shell takes this key as it is. Other clients choose keys, and a shell would execute
/// `$(…)` in one that it completed.
fn is_plain(key: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "_./:@%+,-".contains(c);
    !key.starts_with('-') && key.chars().all(is_plain)
}

/// The URL of the command line that is being completed: `--url URL` or `--url=URL`. Without one,
/// the environment decides.
fn url_of_command_line() -> Option<String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let behind = words.windows(2).find(|pair| pair[0] == "--url").map(|pair| pair[1]);
    let inside = words.iter().find_map(|word| word.strip_prefix("--url="));
    let environment = || std::env::var("TENURE_URL").ok();
    behind.or(inside).map(str::to_owned).or_else(environment)
}

/// Behind `--`: a command, then files.
#[derive(Clone, Copy)]
pub(crate) struct Command;

impl ValueCompleter for Command {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        self.complete_at(0, current)
    }

    fn complete_at(&self, index: usize, current: &OsStr) -> Vec<CompletionCandidate> {
        let text = current.to_string_lossy();
        if index > 0 || text.contains('/') {
            return PathCompleter::any().complete(current);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path);
        let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(&*text)).collect();
        names.sort();
        names.dedup();
        names.into_iter().map(CompletionCandidate::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_a_shell_would_execute_is_not_offered() {
        for key in ["$(id)", "`id`", "a b", "a;b", "a|b", "a'b", "-n", "a>b", "a*", "~", "a&b"] {
            assert!(!is_plain(key), "{key}");
        }
        for key in ["orders/1", "nightly-report", "app:x@y", "é", "1%"] {
            assert!(is_plain(key), "{key}");
        }
    }
}
