//! `tenure run`: a command under a lock. What was typed becomes a `Job`; the runner does the rest.

use std::path::Path;

use tenure::{Config, Key};

use crate::args::Run;
use crate::exit;
use crate::failure::Failure;
use crate::runner::{self, Job, Patience};

pub(super) fn run(url: &str, args: Run) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    // Everything that can be refused is refused here, before a process is made.
    url.parse::<Config>()?;
    if scheme(url) == "memory" {
        let message = "a lock in `memory:` lives in one process and would exclude nobody";
        return Err(Failure::new(exit::USAGE, message, "use --url sqlite: or a server"));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        let advice = "put it behind `--`, as in: tenure run deploy -- ./deploy.sh";
        return Err(Failure::new(exit::USAGE, "there is no command to run", advice));
    };
    runner::run(&Job {
        url: with_inherited_beacon(url),
        owner: (!has_option(url, "owner")).then(|| file_name(program)),
        key,
        patience: match (args.no_wait, args.wait) {
            (true, _) => Patience::None,
            (false, Some(patience)) => Patience::Within(patience),
            (false, None) => Patience::Forever,
        },
        ttl: args.ttl,
        max_hold: args.max_hold,
        note: args.note.unwrap_or_default(),
        busy_exit: args.busy_exit,
        json: args.json,
        program: program.clone(),
        arguments: arguments.to_vec(),
    })
}

/// For the embedded store: the command inherits the descriptor that tells others "this holder lives".
/// Otherwise a keeper that is killed would look dead for the microseconds that its command still has.
fn with_inherited_beacon(url: &str) -> String {
    if scheme(url) != "sqlite" || has_option(url, "inherit") {
        return url.to_owned();
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}inherit=yes")
}

fn scheme(url: &str) -> String {
    url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase()
}

fn has_option(url: &str, name: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

/// What others see as the holder: the command's name. Its arguments may hold secrets.
fn file_name(program: &std::ffi::OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_embedded_store_hands_on_its_beacon() {
        assert_eq!(with_inherited_beacon("sqlite:"), "sqlite:?inherit=yes");
        assert_eq!(with_inherited_beacon("SQLite:a?ttl=1s"), "SQLite:a?ttl=1s&inherit=yes");
        assert_eq!(with_inherited_beacon("sqlite:?inherit=no"), "sqlite:?inherit=no");
        assert_eq!(with_inherited_beacon("memory:"), "memory:");
    }
}
