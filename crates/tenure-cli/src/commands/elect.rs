//! `tenure elect`: runs a command while leading, or shows who leads.

use std::ffi::OsString;
use std::io::Write;
use std::time::{Duration, SystemTime};

use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};
use tenure::{ErrorKind, Key, Leader, blocking};

use crate::args::{Acquire, Reach, positive};
use crate::failure::{self, Failure};
use crate::holder::HolderLine;
use crate::runner::{self, Job};
use crate::store::Store;
use crate::{completion, exit, output};

/// Run a command while leading: one leader at a time
///
/// Waits until no other client leads, and runs the command. If leadership is lost, the command and
/// all its children are ended as by `run`, and the command is started again when this client leads
/// again, with a higher token. When the command ends by itself, `elect` resigns and exits with the
/// command's own code. The command finds key, token and URL as that of `run` does.
///
/// A leader is the exclusive holder of the lock KEY: `show`, `evict` and `wait` work on it, and
/// --note is what --observe and --who show of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure elect scheduler --note http://10.0.0.7 -- ./scheduler")]
#[command(override_usage = "tenure elect [OPTIONS] <KEY> -- <CMD> [ARG]...\n       \
                            tenure elect [OPTIONS] <KEY> -c <COMMAND>\n       \
                            tenure elect --observe [--json] <KEY>\n       \
                            tenure elect --who [--json] <KEY>")]
pub(crate) struct Elect {
    /// End with exit code 76 when leadership is lost, and do not lead again
    #[arg(long)]
    once: bool,

    /// How soon another client leads if this machine dies [default: 30s]
    ///
    /// Leadership is renewed every third of that.
    #[arg(long, value_name = "DUR", value_parser = positive)]
    ttl: Option<Duration>,

    /// The longest term: then the command is ended, and another client may lead
    #[arg(long, value_name = "DUR", value_parser = positive)]
    max_hold: Option<Duration>,

    /// Text that observers see beside the leader, such as its address
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Print who leads, now and after every change, until a signal
    #[arg(long, conflicts_with_all = ["who", "command", "shell_command", "once", "ttl"])]
    #[arg(conflicts_with_all = ["max_hold", "note", "verbose"])]
    observe: bool,

    /// Print who leads now; exit code 1 if there is no leader
    #[arg(long, conflicts_with_all = ["command", "shell_command", "once", "ttl"])]
    #[arg(conflicts_with_all = ["max_hold", "note", "verbose"])]
    who: bool,

    /// JSON: what happens as lines on stderr; of --observe and --who what they print
    #[arg(long)]
    json: bool,

    /// Report more: where the lock lives, the leader that is waited for, grant and release
    #[arg(short, long)]
    verbose: bool,

    /// A command for the shell, in place of CMD: runs `/bin/sh -c COMMAND`
    #[arg(short = 'c', long = "command", value_name = "COMMAND", conflicts_with = "command")]
    shell_command: Option<OsString>,

    /// The name of the election
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    key: String,

    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    #[arg(required_unless_present_any = ["shell_command", "observe", "who"])]
    #[arg(add = ArgValueCompleter::new(completion::Command))]
    command: Vec<OsString>,
}

pub(super) fn run(store: &Store, reach: Option<Reach>, args: Elect) -> Result<u8, Failure> {
    if args.who {
        return who(&super::connect(store)?, &args);
    }
    if args.observe {
        return observe(&super::connect(store)?, &args);
    }
    let command = super::run::command(args.shell_command, args.command)?;
    let owner = super::run::file_name(&command.program);
    let acquire = Acquire {
        ttl: args.ttl,
        note: args.note,
        verbose: args.verbose,
        busy_exit: exit::BUSY,
        ..Acquire::default()
    };
    let job = super::run::job(store, &[args.key], acquire, &owner)?;
    runner::run(&Job {
        url: super::run::with_inherited_liveness_file(&job.url),
        environment: super::run::environment(store, reach),
        max_hold: args.max_hold,
        json: args.json,
        elects: true,
        again: !args.once,
        command: Some(command),
        ..job
    })
}

/// Prints the leader of now.
fn who(client: &blocking::Client, args: &Elect) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let leader = client.election(&key).leader()?;
    if args.json {
        output::print_json(&leader.as_ref().map(|leader| row(&key, leader)))?;
    } else {
        output::print(&format!("{}\n", describe(&key, leader.as_ref())))?;
    }
    Ok(if leader.is_some() { exit::DONE } else { exit::NO })
}

/// Prints one line per change. Ends when the reader of the lines has ended.
fn observe(client: &blocking::Client, args: &Elect) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let mut is_first = true;
    for seen in client.election(&key).observe() {
        let line = match seen {
            Ok(leader) if args.json => {
                let leader = leader.as_ref().map(|leader| row(&key, leader));
                let time = output::utc(SystemTime::now());
                output::json(&json!({"key": key.as_str(), "leader": leader, "time": time}))
            }
            Ok(leader) => describe(&key, leader.as_ref()),
            // Later the observer repeats its request by itself.
            Err(error) if error.kind() == ErrorKind::Unavailable && !is_first => {
                output::say(&output::Harmless(&failure::describe(&error)));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        is_first = false;
        let mut stdout = std::io::stdout().lock();
        let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(exit::DONE)
}

/// The fields of a row of `ls` that are about a leader.
fn row(key: &Key, leader: &Leader) -> Value {
    let mut row = json!(leader.holder);
    row["key"] = key.as_str().into();
    row["candidates"] = leader.candidates.len().into();
    row
}

fn describe(key: &Key, leader: Option<&Leader>) -> String {
    let Some(leader) = leader else { return format!("`{key}` has no leader") };
    let token = leader.token().map(|token| format!(" (token {token})")).unwrap_or_default();
    format!("`{key}`{token} is led by {}", HolderLine(&leader.holder))
}
