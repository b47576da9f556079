//! A network namespace of the lab's own, made without root, in which packets can be dropped.
//!
//! A run in there is a process of its own, with the servers as its children: it runs the cell and
//! writes the history to its stdout. The kernel removes the namespace with the last process in it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::getppid;

use crate::cell::{self, CellResult, ServerPool};
use crate::history::History;
use crate::scenarios::Scenario;
use crate::schemes::LockSpec;

/// The options of `unshare` to try: as root; as the same user with the capabilities to change the
/// network; as root of a user namespace.
const UNSHARE_OPTIONS: [&[&str]; 3] = [
    &["--net"],
    &["--user", "--map-current-user", "--keep-caps", "--net"],
    &["--user", "--map-root-user", "--net"],
];
/// Environment variable of a process in a namespace: names the network of the process that started
/// it.
const STARTER_VARIABLE: &str = "TENURE_LAB_NETWORK";
/// Begins the output of a run that has no history; the reason follows.
const SKIPPED: &str = "skipped: ";

/// The result of a run in a namespace.
pub(crate) enum NamespaceRun {
    Completed(History),
    /// It cannot be run on this machine, with the reason.
    Skipped(String),
}

/// Whether this process is in a namespace of the lab: the process that started it named its own
/// network, and it was another one.
///
/// A flag in an environment variable would not do: set by mistake, it would let `ip rule del` loose
/// on the machine's own network.
pub(crate) fn is_inside() -> bool {
    let Ok(own) = network_of("self") else { return false };
    let parent = getppid().and_then(|parent| network_of(parent.as_raw_pid()).ok());
    let starter = std::env::var_os(STARTER_VARIABLE).unwrap_or_default();
    is_separate(&own, &starter, parent.as_deref())
}

/// Whether the network of a process is neither that of the process that started it nor, where the
/// kernel shows it, that of its parent.
fn is_separate(own: &Path, starter: &OsStr, parent: Option<&Path>) -> bool {
    let named = starter.to_str().is_some_and(|name| name.starts_with("net:["));
    named && own != Path::new(starter) && parent != Some(own)
}

/// The kernel's name for the network of a process, such as `net:[4026531840]`.
fn network_of(process: impl fmt::Display) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net"))
}

/// Runs a cell in a new namespace.
pub(crate) fn run_cell(
    (scenario, lock): (&Scenario, &LockSpec),
    lease: Option<Duration>,
    program: &Path,
) -> Result<NamespaceRun> {
    let options = match usable_options() {
        Ok(options) => options,
        Err(why) => {
            let why = format!("no network namespace can be made here: {why}");
            return Ok(NamespaceRun::Skipped(why));
        }
    };
    let lease = lease.map_or(0, |lease| lease.as_millis());
    let role = format!("network:{}:{}:{lease}", scenario.name, lock.name);
    let output = unshare(options).arg(program).args(["lab", "play", &role]).output()?;
    if !output.status.success() {
        bail!("the run in its own network: {}", first_error_line(&output));
    }
    Ok(match output.stdout.strip_prefix(SKIPPED.as_bytes()) {
        Some(why) => NamespaceRun::Skipped(String::from_utf8_lossy(why).trim().to_owned()),
        None => NamespaceRun::Completed(History::read(&output.stdout[..])?),
    })
}

/// In the process that has the namespace: runs the cell and prints its history.
pub(crate) fn run_inside(cell: &str) -> Result<()> {
    ensure!(is_inside(), "this is not a network of the lab's");
    let words: Vec<_> = cell.split(':').collect();
    let [scenario, lock, lease] = words[..] else { bail!("no such cell: {cell}") };
    let lease = Some(Duration::from_millis(lease.parse()?)).filter(|lease| !lease.is_zero());
    ip(&["link", "set", "lo", "up"])?;
    // Moves the rule for local addresses back, to make room for rules before it.
    ip(&["rule", "add", "pref", "1", "lookup", "local"])?;
    ip(&["rule", "del", "pref", "0"])?;
    let mut pool = ServerPool::default().with_lease(lease);
    let program = std::env::current_exe()?;
    let lock = LockSpec::named(lock)?;
    match cell::run(Scenario::named(scenario)?, lock, &mut pool, &program)? {
        CellResult::Run(run) => run.history.write(&mut io::stdout().lock()),
        CellResult::Inapplicable(why) => Ok(write!(io::stdout(), "{SKIPPED}{why}")?),
        CellResult::Skipped(why) => Ok(write!(io::stdout(), "{SKIPPED}{why}")?),
    }
}

/// Drops every packet from and to these ports.
pub(crate) fn drop_packets(ports: Range<u16>) -> Result<()> {
    change_rules("add", &ports)
}

/// Lets packets from and to these ports pass again.
pub(crate) fn pass_packets(ports: Range<u16>) -> Result<()> {
    change_rules("del", &ports)
}

fn change_rules(verb: &str, ports: &Range<u16>) -> Result<()> {
    ensure!(is_inside(), "this is not a network of the lab's");
    let ports = format!("{}-{}", ports.start, ports.end - 1);
    for end in ["sport", "dport"] {
        ip(&["rule", verb, "pref", "0", "ipproto", "tcp", end, &ports, "blackhole"])?;
    }
    Ok(())
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).env("PATH", path()).output();
    let output = output.context("cannot run `ip`")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), first_error_line(&output));
    Ok(())
}

/// The first options of `unshare` that work on this machine, or the reason of the last failure.
fn usable_options() -> Result<&'static [&'static str], String> {
    let mut why = String::new();
    for options in UNSHARE_OPTIONS {
        let probe = ["ip", "rule", "add", "pref", "1", "lookup", "local"];
        match unshare(options).args(probe).output() {
            Ok(output) if output.status.success() => return Ok(options),
            Ok(output) => why = first_error_line(&output),
            Err(error) => return Err(format!("cannot run `unshare`: {error}")),
        }
    }
    Err(why)
}

fn unshare(options: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    // If the name is empty, the new process does not take itself to be in a namespace.
    let own = network_of("self").unwrap_or_default();
    command.args(options).env("PATH", path()).env(STARTER_VARIABLE, own);
    command
}

/// The search path, with the folders in which only root looks: `ip` is often there.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn first_error_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().next().unwrap_or("no message").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_variable_alone_does_not_make_a_namespace() {
        let (own, other) = (Path::new("net:[1]"), Path::new("net:[2]"));
        assert!(is_separate(own, OsStr::new("net:[2]"), Some(other)));
        // In a user namespace, a process may not see the network of its parent.
        assert!(is_separate(own, OsStr::new("net:[2]"), None));
        for starter in ["", "1", "net:[1]"] {
            assert!(!is_separate(own, OsStr::new(starter), None), "{starter}");
        }
        assert!(!is_separate(own, OsStr::new("net:[2]"), Some(own)), "its parent has the same");
        assert!(!is_inside(), "these tests run in the machine's own network");
    }
}
