//! The command line: flags, arguments and their help texts. Help, manual page and shell completions
//! are made from these types; `commands` gives them their meaning.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;

use crate::completion;

/// The longest limit of a wait, as for every duration.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86400);

/// Run a command under a distributed lock, and see who holds what.
///
/// A lock is named by a KEY and lives on the server that the URL names. Without a URL it lives in
/// an embedded store in your state folder and works between the processes of this machine only.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, disable_help_subcommand = true, infer_subcommands = false)]
#[command(after_help = "Exit codes: `tenure help exit-codes`")]
pub(crate) struct Args {
    /// Where the locks live, as in `sqlite:/srv/locks.db`
    ///
    /// Without it the URL comes from TENURE_URL, from the file ~/.config/tenure/url
    /// ($XDG_CONFIG_HOME/tenure/url), or from /etc/tenure/url. The default is `sqlite:`, the
    /// embedded store in your state folder ($XDG_STATE_HOME/tenure or ~/.local/state/tenure).
    #[arg(long, global = true, env = "TENURE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// How far a lock has to reach: `network` refuses a store of one machine
    #[arg(long, global = true, env = "TENURE_REACH", hide_env_values = true)]
    pub(crate) reach: Option<Reach>,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// How far a lock has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Reach {
    /// To the processes of this machine, as every store does
    #[value(alias = "")]
    Machine,
    /// To every machine that reaches the server
    Network,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Run),
    Hold(Hold),
    Elect(crate::commands::elect::Elect),
    Ls(Ls),
    Show(Show),
    Evict(Evict),
    Wait(Wait),
    Doctor(Doctor),
    #[cfg(feature = "lab")]
    Lab(crate::commands::lab::Lab),
    Schema(Schema),
    Completions(Completions),
    Man(Man),
    Help(Help),
}

/// Run a command while holding a lock
///
/// Acquires the lock, runs the command, releases the lock and exits with the command's own code. If
/// the lock cannot be renewed, the command and all its children are ended before the lease ends. If
/// it is evicted, they are ended as well, but the next holder may start at once.
///
/// With several KEYs, all of them are held or none; the command ends if one is lost.
///
/// The command finds the key in $TENURE_KEY, the fencing token in $TENURE_TOKEN (of several keys in
/// $TENURE_KEY_1, $TENURE_TOKEN_1 and so on), how they are held in $TENURE_MODE and the URL in
/// $TENURE_URL (`withheld:` if the URL has a password in it).
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure run --wait 10m deploy -- sh -c './build && ./push'")]
#[command(override_usage = "tenure run [OPTIONS] <KEY>... -- <CMD> [ARG]...\n       \
                            tenure run [OPTIONS] <KEY>... -c <COMMAND>")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) acquire: Acquire,

    /// Keep the lock for at least this long, also if the command ends sooner
    ///
    /// For a short job that several machines start at about the same time. Counted from the grant,
    /// whatever the command's code is. `run` ends only then; a signal leaves the rest to a process
    /// in the background. The lease is at least as long, so that a crash frees the lock no sooner;
    /// except on `sqlite:`, where the lock of a dead process is free at once.
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) at_least: Option<Duration>,

    /// End the command when it has held the lock for this long, with exit code 76
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) max_hold: Option<Duration>,

    /// Report what happens as JSON lines on stderr
    #[arg(long)]
    pub(crate) json: bool,

    /// A command for the shell, in place of CMD: runs `/bin/sh -c COMMAND`
    #[arg(short = 'c', long = "command", value_name = "COMMAND", conflicts_with = "command")]
    pub(crate) shell_command: Option<OsString>,

    /// The names of the locks
    #[arg(required = true, value_name = "KEY")]
    #[arg(add = ArgValueCompleter::new(completion::keys_or_command))]
    pub(crate) keys: Vec<String>,

    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "shell_command")]
    #[arg(add = ArgValueCompleter::new(completion::Command))]
    pub(crate) command: Vec<OsString>,
}

/// Hold a lock without a command, until Ctrl-C, a signal, or the end of the input
///
/// Prints the fencing token on stdout when the lock is held. INT, TERM, HUP and QUIT release it,
/// and so does the end of the input: Ctrl-D on a terminal, or a pipe that its writer has closed.
/// The end of a file or of /dev/null does not. Exit code 0 if it was released, 76 if it was lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tenure hold deploy --note 'maintenance until noon'")]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) acquire: Acquire,

    /// Report what happens as JSON lines on stdout, in place of the token
    #[arg(long)]
    pub(crate) json: bool,

    /// The name of the lock
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    pub(crate) key: String,
}

/// How a lock is acquired.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Acquire {
    /// Wait at most this long for the lock, as in 500ms, 10s or 1m30s; the default is for ever
    ///
    /// A number alone is in seconds. For that long it also waits for a server that is down. Without
    /// --wait, the option `outage` of the URL says how long.
    #[arg(short, long, value_name = "DUR", value_parser = wait_limit, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all: exit at once if another client holds the lock
    #[arg(short, long)]
    pub(crate) no_wait: bool,

    /// Lease: how soon the lock frees if this machine dies [default: 30s]
    ///
    /// It is renewed every third of that while the lock is held.
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) ttl: Option<Duration>,

    /// Text that other clients see beside the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Exit code when the lock is busy; with 0 nothing is printed either
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::BUSY)]
    pub(crate) busy_exit: u8,

    /// Report more: where the lock lives, the holder that is waited for, grant and release
    ///
    /// On a terminal the wait is reported anyway; without one, after 10 s.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Hold the lock together with other shared holders, as readers do
    ///
    /// A lock that is not shared excludes all of them. Who waits is served in order.
    #[arg(short, long, conflicts_with = "limit")]
    pub(crate) shared: bool,

    /// Hold a permit of a semaphore: at most N permits are out together
    ///
    /// Every command states the limit itself; a key is a lock or a semaphore, not both.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,

    /// How many permits to hold, all of them or none [default: 1]
    #[arg(long, value_name = "K", requires = "limit")]
    pub(crate) permits: Option<u32>,
}

/// List the locks that are held
#[derive(Debug, clap::Args)]
#[command(visible_alias = "list")]
pub(crate) struct Ls {
    /// Only keys that start with this
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print a JSON array of rows
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show one lock: who holds it and who waits; exit code 0 if held, 1 if free
#[derive(Debug, clap::Args)]
#[command(visible_alias = "status")]
pub(crate) struct Show {
    /// Print JSON: an object, or `null` if the lock is free
    #[arg(long)]
    pub(crate) json: bool,

    /// The name of the lock
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    pub(crate) key: String,
}

/// Take a lock away from its holder
///
/// Force-releases exactly the grant with that token and no later one. Its holder is told that the
/// lock is lost, and the next token is higher. `tenure ls` and `tenure show` print the token;
/// --current takes the one of now, after a question.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "break")]
#[command(override_usage = "tenure evict <KEY> --token <N> [--ask[=<DUR>]]\n       \
                            tenure evict <KEY> --current [--ask[=<DUR>]] [--yes]")]
#[command(group = clap::ArgGroup::new("grant").required(true).multiple(true))]
pub(crate) struct Evict {
    /// The name of the lock
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    pub(crate) key: String,

    /// The token of the grant to end
    #[arg(long, value_name = "N", group = "grant")]
    pub(crate) token: Option<tenure::FencingToken>,

    /// The grant of now: shows its holder and asks
    #[arg(long, group = "grant", conflicts_with = "token")]
    pub(crate) current: bool,

    /// Send TERM to the holder first, and wait until it has released; evict only after DUR
    ///
    /// For a holder that is a `tenure run` or `tenure hold` of this machine. Without DUR it is
    /// never evicted. Without --token, the grant of now is meant.
    #[arg(long, value_name = "DUR", group = "grant", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = wait_limit)]
    pub(crate) ask: Option<Option<Duration>>,

    /// Do not ask; needed without a terminal, unless --token is given
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Wait until a lock is free, without acquiring it
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// Wait at most this long; the default is for ever
    #[arg(short, long, value_name = "DUR", value_parser = wait_limit)]
    pub(crate) wait: Option<Duration>,

    /// Report the holder at once; on a terminal it is reported anyway, without one after 10 s
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The name of the lock
    #[arg(add = ArgValueCompleter::new(completion::keys))]
    pub(crate) key: String,
}

/// Check the server for what could break a lock; exit code 1 if something does
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Print a JSON array of findings
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the statements that make the tables of a database
///
/// A client makes them itself when it connects and may create tables. Where it may not, an
/// administrator can run `tenure schema postgres | psql`.
#[derive(Debug, clap::Args)]
pub(crate) struct Schema {
    /// The kind of database
    pub(crate) dialect: Dialect,
}

/// A kind of database.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Dialect {
    /// MySQL and MariaDB
    Mysql,
    /// PostgreSQL
    Postgres,
}

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the manual page
///
/// `tenure man | man -l -` shows it; `tenure man run` prints the page of one verb.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// A verb; the default is the program itself
    pub(crate) verb: Option<String>,
}

/// Explain the program, a verb, or the exit codes
#[derive(Debug, clap::Args)]
pub(crate) struct Help {
    /// A verb, or `exit-codes`
    pub(crate) topic: Option<String>,
}

/// Parses a limit of a wait: a duration or, as flock has it, a number of seconds.
fn wait_limit(text: &str) -> Result<Duration, tenure::Error> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    match text.parse().map(Duration::try_from_secs_f64) {
        Ok(Ok(limit)) if is_number && limit <= LONGEST_WAIT => Ok(limit),
        _ => tenure::duration(text),
    }
}

/// Parses a duration that is not zero.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    match tenure::duration(text) {
        Ok(Duration::ZERO) => Err("it has to be longer than nothing, as in 30s".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}
