//! The sections of a manual page that are not made from the flags: URL, examples, exit status,
//! environment and files.

use std::fmt::Write as _;

use clap::Command;

use crate::exit;

/// A thing and what is to say about it.
type Entry = (&'static str, &'static str);

const URL: &[Entry] = &[
    ("sqlite:", "The embedded store of this user, for the processes of one machine; the default."),
    ("sqlite:/srv/locks.db", "The same in a file, for all users who may write it."),
    (
        "redis://host:6379/0",
        "One Redis; rediss: with TLS, redis+unix:, redis+sentinel:, redis+cluster:.",
    ),
    ("redlock://host1,host2,host3", "A majority of independent Redis servers."),
    ("postgres://user@host/db", "A PostgreSQL database."),
    ("mysql://user@host/db", "A MySQL or MariaDB database."),
    ("etcd://host1,host2,host3", "etcd; etcds: with TLS."),
    ("zk://host1,host2,host3/chroot", "ZooKeeper."),
    ("consul://host", "Consul; consuls: with TLS."),
];

const URL_OPTIONS: &[Entry] = &[
    ("prefix=app/", "Put before every key."),
    ("owner=web-3", "The name of the holder that other clients see."),
    ("ttl=10s", "The lease, 30s unless set."),
    ("renew=3s", "How often it is renewed: every third of the lease unless set."),
    ("outage=1m", "How long run, hold and wait retry a server that is down."),
    ("password_file=PATH", "A file with the password, so that the URL has none."),
];

const ENVIRONMENT: &[Entry] = &[
    (
        "TENURE_URL",
        "Where the locks live, if --url is not given. Empty is not set. The command of run finds \
         the URL here, or withheld: if it has a password in it.",
    ),
    ("TENURE_REACH", "With network, a store of one machine is refused, as by --reach."),
    (
        "TENURE_KEY, TENURE_TOKEN",
        "Set for the command of run and elect: the key and its fencing token. Of several keys: \
         TENURE_KEY_1, TENURE_TOKEN_1 and so on, in the order of the command line. Permits have no \
         token.",
    ),
    ("TENURE_MODE", "Set for the command of run: exclusive, shared or permits."),
    (
        "XDG_CONFIG_HOME, XDG_STATE_HOME",
        "Where the file with the URL and the embedded store are, in a folder tenure.",
    ),
    ("NO_COLOR, TERM", "Nothing is coloured if NO_COLOR is set and not empty, or if TERM is dumb."),
];

const FILES: &[Entry] = &[
    ("~/.config/tenure/url", "The URL, if neither --url nor TENURE_URL names one."),
    ("/etc/tenure/url", "The URL for all users of the machine, if there is no file of the user."),
    ("~/.local/state/tenure/locks.db", "The embedded store, with a folder locks.db.d beside it."),
];

/// The verb, what is done, and how.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("run", "One at a time, wherever it is started:", "tenure run nightly-report -- ./report.sh"),
    (
        "run",
        "Give up after ten minutes, with exit code 75:",
        "tenure run -w 10m deploy -c './build && ./push'",
    ),
    (
        "run",
        "From cron, on three machines: once, and quietly if it runs already:",
        "tenure run --no-wait --busy-exit 0 --at-least 1m nightly -- ./report.sh",
    ),
    (
        "run",
        "Beside other readers, but not beside a writer:",
        "tenure run --shared config -- ./report.sh",
    ),
    (
        "run",
        "At most three at a time, wherever they are started:",
        "tenure run --limit 3 partner-api -- ./push",
    ),
    ("run", "Two locks, both or none:", "tenure run accounts/3 accounts/7 -- ./transfer.sh"),
    (
        "elect",
        "One scheduler at a time; another machine goes on when this one dies:",
        "tenure elect scheduler --note http://10.0.0.7 -- ./scheduler",
    ),
    ("elect", "Where the scheduler is:", "tenure elect --who scheduler"),
    ("hold", "Keep others out until Ctrl-C:", "tenure hold deploy --note 'maintenance until noon'"),
    (
        "ls",
        "What has been held for longer than an hour:",
        "tenure ls --json | jq -r '.[] | select(.held_for_ms > 3600000) | .key'",
    ),
    ("show", "Whether a job is running:", "tenure show deploy && echo running"),
    (
        "evict",
        "End the job that holds a lock, and its lock if it does not end within a minute:",
        "tenure evict deploy --ask=1m --yes",
    ),
    ("wait", "Wait until a job is over:", "tenure wait -w 5m deploy"),
    (
        "doctor",
        "What could break a lock on this server:",
        "tenure doctor --url redis://locks.example.com",
    ),
    ("schema", "Make the tables for a user who may not:", "tenure schema postgres | psql app"),
    (
        "completions",
        "Complete verbs, flags, keys and commands:",
        "source <(tenure completions bash)",
    ),
    ("man", "Read the page of a verb:", "tenure man run | man -l -"),
    ("help", "What the exit codes mean:", "tenure help exit-codes"),
    ("lab", "See a lock fail, and what helps:", "tenure lab run oversell"),
];

/// The verbs that work on a store.
const STORE_VERBS: [&str; 8] = ["run", "hold", "elect", "ls", "show", "evict", "wait", "doctor"];

pub(super) fn render(command: &Command) -> String {
    let name = command.get_name();
    let is_program = name == "tenure";
    let uses_store = is_program || STORE_VERBS.contains(&name);
    let mut text = String::new();
    if is_program {
        entries(&mut text, "URL", URL);
        text += ".PP\nOptions of every URL, as in redis://host?prefix=app/&ttl=10s:\n";
        list(&mut text, URL_OPTIONS);
    }
    let examples: Vec<_> =
        EXAMPLES.iter().filter(|(verb, ..)| is_program || *verb == name).collect();
    if !examples.is_empty() {
        text += ".SH EXAMPLES\n";
    }
    for (_, about, line) in examples {
        let _cannot_fail =
            write!(text, ".PP\n{}\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", escape(about), escape(line));
    }
    text += ".SH \"EXIT STATUS\"\n";
    for (code, meaning) in exit::of_verb(if is_program { None } else { Some(name) }) {
        let _cannot_fail = write!(text, ".TP\n\\fB{}\\fR\n{}\n", code, escape(&meaning));
    }
    if uses_store {
        entries(&mut text, "ENVIRONMENT", ENVIRONMENT);
        entries(&mut text, "FILES", FILES);
    }
    text += ".SH \"SEE ALSO\"\n";
    text += if is_program { "flock(1), tenure man VERB\n" } else { "tenure(1), tenure man\n" };
    text
}

fn entries(text: &mut String, title: &str, entries: &[Entry]) {
    let _cannot_fail = writeln!(text, ".SH {title}");
    list(text, entries);
}

fn list(text: &mut String, entries: &[Entry]) {
    for (name, meaning) in entries {
        let (name, meaning) = (escape(name), escape(meaning));
        let _cannot_fail = write!(text, ".TP\n\\fB{name}\\fR\n{meaning}\n");
    }
}

/// Text that roff takes as it is: no dash becomes a hyphen, no line a request.
pub(super) fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    let is_request = text.starts_with('.') || text.starts_with('\'');
    if is_request { format!("\\&{text}") } else { text }
}
