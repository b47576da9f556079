//! `tenure run`: a command under a lock. What was typed becomes a `Job`; the runner does the rest.

use std::path::Path;
use std::time::Duration;

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
    check_renewal(url, args.ttl)?;
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

/// For the embedded store: the command inherits the descriptor that tells others "this holder
/// lives". Otherwise a keeper that is killed would look dead for the microseconds that its command
/// still has.
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
    option(url, name).is_some()
}

fn option<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The command is asked to end when a quarter of its lease is left: renewals have to come sooner.
fn check_renewal(url: &str, ttl: Option<Duration>) -> Result<(), Failure> {
    let given = |name| option(url, name).and_then(|text| tenure::duration(text).ok());
    let ttl = ttl.or_else(|| given("ttl")).unwrap_or(DEFAULT_TTL);
    match given("renew") {
        Some(interval) if interval > ttl / 2 => {
            let message = format!("renewing every {interval:?} is too rare for a lease of {ttl:?}");
            let advice = "`renew` in the URL may be at most half of the lease, or leave it out";
            Err(Failure::new(exit::USAGE, message, advice))
        }
        _ => Ok(()),
    }
}

/// What others see as the holder: the command's name. Its arguments may hold secrets.
fn file_name(program: &std::ffi::OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

/// The library's own default.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

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

    #[test]
    fn renewals_have_to_leave_time_to_end_the_command() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert!(check_renewal("sqlite:?renew=15s", None).is_ok());
        assert!(check_renewal("sqlite:?renew=16s", None).is_err());
        assert!(check_renewal("sqlite:?renew=16s", seconds(32)).is_ok());
        assert!(check_renewal("sqlite:?ttl=1m&renew=31s", None).is_err());
        assert!(check_renewal("sqlite:?ttl=1m&renew=25s", seconds(10)).is_err());
    }
}
