//! `tenure run`: a command under a lock. What was typed becomes a `Job`; the runner does the rest.

use std::path::Path;
use std::time::Duration;

use tenure::Key;

use crate::args::{Reach, Run};
use crate::exit;
use crate::failure::Failure;
use crate::runner::{self, Job, Lease, Patience};
use crate::store::{Store, option, scheme};

pub(super) fn run(store: &Store, reach: Option<Reach>, args: Run) -> Result<u8, Failure> {
    let (key, url) = (Key::new(&args.key)?, store.url.as_str());
    // Everything that can be refused is refused here, before a process is made.
    store.config()?;
    if scheme(url) == "memory" {
        let message = "a lock in `memory:` lives in one process and would exclude nobody";
        let advice = "name a server with --url, or `sqlite:` for this machine alone";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    let lease = lease(url, args.ttl)?;
    let Some((program, arguments)) = args.command.split_first() else {
        let advice = "put it behind `--`, as in: tenure run deploy -- ./deploy.sh";
        return Err(Failure::new(exit::USAGE, "there is no command to run", advice));
    };
    runner::run(&Job {
        url: with_inherited_beacon(url),
        environment: environment(store, reach),
        source: store.source.clone(),
        owner: (!has_option(url, "owner")).then(|| file_name(program)),
        key,
        patience: match (args.no_wait, args.wait) {
            (true, _) => Patience::None,
            (false, Some(patience)) => Patience::Within(patience),
            (false, None) => Patience::Forever,
        },
        outage: given(url, "outage"),
        ttl: args.ttl,
        lease,
        at_least: args.at_least,
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

/// What the command has to know so that a `tenure` inside it locks in the same store.
fn environment(store: &Store, reach: Option<Reach>) -> Vec<(&'static str, String)> {
    let url = store.handed_on().map(|url| ("TENURE_URL", url));
    let reach = (reach == Some(Reach::Network)).then(|| ("TENURE_REACH", "network".to_owned()));
    url.into_iter().chain(reach).collect()
}

fn has_option(url: &str, name: &str) -> bool {
    option(url, name).is_some()
}

/// The lease as flag, URL and default give it. The command is asked to end when a quarter of it is
/// left: renewals have to come sooner.
fn lease(url: &str, ttl: Option<Duration>) -> Result<Lease, Failure> {
    let ttl = ttl.or_else(|| given(url, "ttl")).unwrap_or(DEFAULT_TTL);
    let renew_every = given(url, "renew").unwrap_or(ttl / 3);
    if renew_every > ttl / 2 {
        let message = format!("renewing every {renew_every:?} is too rare for a lease of {ttl:?}");
        let advice = "`renew` in the URL may be at most half of the lease, or leave it out";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    Ok(Lease { ttl, renew_every })
}

fn given(url: &str, name: &str) -> Option<Duration> {
    option(url, name).and_then(|text| tenure::duration(text).ok())
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
        assert!(lease("sqlite:?renew=15s", None).is_ok());
        assert!(lease("sqlite:?renew=16s", None).is_err());
        assert!(lease("sqlite:?renew=16s", seconds(32)).is_ok());
        assert!(lease("sqlite:?ttl=1m&renew=31s", None).is_err());
        assert!(lease("sqlite:?ttl=1m&renew=25s", seconds(10)).is_err());
    }
}
