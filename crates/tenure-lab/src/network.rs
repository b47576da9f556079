//! A network of the lab's own, in which packets can be lost: a network namespace, made without
//! root.
//!
//! A run in there is a process of its own, with the servers as its children: it plays the cell and
//! writes the history to its stdout. The namespace is gone with the last of them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::getppid;

use crate::history::History;
use crate::run::{self, Played, Rigs};
use crate::scenarios::Scenario;
use crate::schemes::Lock;

/// Whether this process is in one: whoever started it was in another network, and says which.
///
/// An environment variable alone would let anybody send `ip rule del` to the machine's own network.
pub(crate) fn inside() -> bool {
    let Ok(own) = network_of("self") else { return false };
    let parent = getppid().and_then(|parent| network_of(parent.as_raw_pid()).ok());
    let starter = std::env::var_os(INSIDE).unwrap_or_default();
    is_apart(&own, &starter, parent.as_deref())
}

/// Whether the network of this process is neither its starter's nor, where that may be seen, its
/// parent's.
fn is_apart(own: &Path, starter: &OsStr, parent: Option<&Path>) -> bool {
    let named = starter.to_str().is_some_and(|name| name.starts_with("net:["));
    named && own != Path::new(starter) && parent != Some(own)
}

/// What the kernel calls the network of a process, such as `net:[4026531840]`.
fn network_of(process: impl fmt::Display) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net"))
}

/// Plays a cell in a network of its own: its history, or why there is none.
pub(crate) fn play(
    (scenario, lock): (&Scenario, &Lock),
    lease: Option<Duration>,
    program: &Path,
) -> Result<Result<History, String>> {
    let way = match way() {
        Ok(way) => way,
        Err(why) => return Ok(Err(format!("no network of its own is to be had: {why}"))),
    };
    let lease = lease.map_or(0, |lease| lease.as_millis());
    let part = format!("network:{}:{}:{lease}", scenario.name, lock.name);
    let output = unshared(way).arg(program).args(["lab", "play", &part]).output()?;
    if !output.status.success() {
        bail!("the run in its own network: {}", said(&output));
    }
    match output.stdout.strip_prefix(SKIPPED.as_bytes()) {
        Some(why) => Ok(Err(String::from_utf8_lossy(why).trim().to_owned())),
        None => Ok(Ok(History::read(&output.stdout[..])?)),
    }
}

/// In the process that has such a network: plays the cell and tells its history.
pub(crate) fn inner(cell: &str) -> Result<()> {
    ensure!(inside(), "this is not a network of the lab's");
    let words: Vec<_> = cell.split(':').collect();
    let [scenario, lock, lease] = words[..] else { bail!("no such cell: {cell}") };
    let lease = Some(Duration::from_millis(lease.parse()?)).filter(|lease| !lease.is_zero());
    ip(&["link", "set", "lo", "up"])?;
    // Room for rules before the one that finds what is on this machine.
    ip(&["rule", "add", "pref", "1", "lookup", "local"])?;
    ip(&["rule", "del", "pref", "0"])?;
    let mut rigs = Rigs::default().with_lease(lease);
    let program = std::env::current_exe()?;
    let played = run::play(Scenario::named(scenario)?, Lock::named(lock)?, &mut rigs, &program)?;
    match played {
        Played::Run(run) => run.history.write(&mut io::stdout().lock()),
        Played::Inapplicable(why) => Ok(write!(io::stdout(), "{SKIPPED}{why}")?),
        Played::Skipped(why) => Ok(write!(io::stdout(), "{SKIPPED}{why}")?),
    }
}

/// Loses every packet from and to these ports.
pub(crate) fn lose(ports: Range<u16>) -> Result<()> {
    change("add", &ports)
}

/// Lets them pass again.
pub(crate) fn pass(ports: Range<u16>) -> Result<()> {
    change("del", &ports)
}

fn change(verb: &str, ports: &Range<u16>) -> Result<()> {
    ensure!(inside(), "this is not a network of the lab's");
    let ports = format!("{}-{}", ports.start, ports.end - 1);
    for end in ["sport", "dport"] {
        ip(&["rule", verb, "pref", "0", "ipproto", "tcp", end, &ports, "blackhole"])?;
    }
    Ok(())
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).env("PATH", path()).output();
    let output = output.context("cannot run `ip`")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), said(&output));
    Ok(())
}

/// The way to a network of its own that this machine allows, tried.
fn way() -> Result<&'static [&'static str], String> {
    let mut why = String::new();
    for way in WAYS {
        let probe = ["ip", "rule", "add", "pref", "1", "lookup", "local"];
        match unshared(way).args(probe).output() {
            Ok(output) if output.status.success() => return Ok(way),
            Ok(output) => why = said(&output),
            Err(error) => return Err(format!("cannot run `unshare`: {error}")),
        }
    }
    Err(why)
}

fn unshared(way: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    // Without a name of its own network, what is started will not believe that it is apart.
    let own = network_of("self").unwrap_or_default();
    command.args(way).env("PATH", path()).env(INSIDE, own);
    command
}

/// `ip` is often where only root looks.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().next().unwrap_or("it says nothing").trim().to_owned()
}

/// As root; else as the same user with what it takes to shape that network; else as its root.
const WAYS: [&[&str]; 3] = [
    &["--net"],
    &["--user", "--map-current-user", "--keep-caps", "--net"],
    &["--user", "--map-root-user", "--net"],
];
/// Names, in a process that has a network of its own, the network of its starter.
const INSIDE: &str = "TENURE_LAB_NETWORK";
/// Before the reason, where there is no history.
const SKIPPED: &str = "skipped: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_in_the_environment_does_not_make_a_network_of_its_own() {
        let (own, other) = (Path::new("net:[1]"), Path::new("net:[2]"));
        assert!(is_apart(own, OsStr::new("net:[2]"), Some(other)));
        // In a user namespace of its own, it may not look at its parent.
        assert!(is_apart(own, OsStr::new("net:[2]"), None));
        for starter in ["", "1", "net:[1]"] {
            assert!(!is_apart(own, OsStr::new(starter), None), "{starter}");
        }
        assert!(!is_apart(own, OsStr::new("net:[2]"), Some(own)), "its parent has the same");
        assert!(!inside(), "these tests run in the machine's own network");
    }
}
