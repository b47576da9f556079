//! `cargo xtask servers`: fetch, start, stop and list the real servers that the tests run against.

use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_servers::{
    Bundle, Cluster, Durability, Flavor, Node, Options, Role, Topology, dir, fetch, remove_at_exit,
    start, wait_until,
};

const USAGE: &str = "\
usage: cargo xtask servers COMMAND

  fetch [NAME…]          get the servers that are missing; without names, all of them
  start NAME… [OPTION…]  run until Ctrl-C or the end of standard input
  stop                   end what `start` runs, from another terminal
  list                   names, versions, where they come from, and what runs

options of start:
  --json                 one line of JSON per topology instead of text
  --memory | --fast | --default | --durable
                         what an acknowledged write survives (fast: kill -9, not a power cut)
  --redis8 | --valkey    instead of Redis 7
  --clock                with a wall clock that can be shifted

names:
  redis redis5 redis-sentinel redis-cluster etcd etcd3 zookeeper zookeeper3 consul consul3
  postgres mariadb mysql; for fetch also redis8, valkey and jre

environment: TENURE_SERVERS_DIR, TENURE_SERVERS_USE, TENURE_SERVERS_NEWEST, TENURE_MIRROR,
TENURE_MIRROR_SECURITY, TENURE_KEYRING; see docs/servers.md
";

/// Runs the command. `arguments` are those after `servers`.
pub(crate) fn main(arguments: Vec<String>) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["fetch", names @ ..] => fetch_all(names),
        ["start", rest @ ..] => Start::parse(rest).and_then(|start| start.run()),
        ["stop"] => stop(),
        ["list"] => list(),
        ["help" | "-h" | "--help"] | [_, "-h" | "--help"] => print(USAGE.trim_end()),
        [] => Err(Failure::Usage("a command is missing".into())),
        [other, ..] => Err(Failure::Usage(format!("`{}` is not a command", other.escape_debug()))),
    };
    match result {
        Ok(()) | Err(Failure::ReaderClosed) => ExitCode::SUCCESS,
        Err(Failure::Usage(reason)) => {
            eprintln!("cargo xtask servers: {reason}\n\n{USAGE}");
            ExitCode::from(64)
        }
        Err(Failure::Other(reason)) => {
            eprintln!("cargo xtask servers: {reason}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    /// The reader of standard output has closed the pipe, as `head` does. Not an error.
    ReaderClosed,
    Other(String),
    Usage(String),
}

impl From<tenure_servers::Error> for Failure {
    fn from(error: tenure_servers::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderClosed,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// Prints a line at once, also into a pipe.
fn print(line: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Fetches all missing servers, also if one of them fails.
fn fetch_all(names: &[&str]) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut failed = 0;
    for bundle in bundles(names)? {
        match fetch(bundle) {
            Ok(path) => print(format_args!("{:10} {}", bundle.name(), first(&path).display()))?,
            Err(error) => {
                print(format_args!("{:10} {error}", bundle.name()))?;
                failed += 1;
            }
        }
    }
    print(format_args!("done in {:.1} s", begin.elapsed().as_secs_f64()))?;
    match failed {
        0 => Ok(()),
        count => Err(Failure::Other(format!("{count} are not available"))),
    }
}

/// The first entry of a class path.
fn first(path: &Path) -> PathBuf {
    std::env::split_paths(path).next().unwrap_or_default()
}

/// The bundles for names of topologies and bundles; all bundles without a name.
fn bundles(names: &[&str]) -> Result<Vec<Bundle>, Failure> {
    if names.is_empty() {
        return Ok(Bundle::ALL.to_vec());
    }
    let mut bundles = Vec::new();
    for name in names {
        match (name.parse::<Topology>(), Bundle::ALL.iter().find(|bundle| bundle.name() == *name)) {
            (Ok(topology), _) => bundles.extend(topology.bundles()),
            (_, Some(&bundle)) => bundles.push(bundle),
            (Err(error), None) => return Err(Failure::Usage(error)),
        }
    }
    Ok(bundles)
}

/// The arguments of `start`.
struct Start {
    topologies: Vec<Topology>,
    options: Options,
    json: bool,
}

impl Start {
    fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut this = Self { topologies: Vec::new(), options: Options::default(), json: false };
        for word in words {
            this.options = match *word {
                "--json" => {
                    this.json = true;
                    this.options
                }
                "--clock" => this.options.clock(),
                "--memory" => this.options.durability(Durability::Memory),
                "--fast" => this.options.durability(Durability::Fast),
                "--default" => this.options.durability(Durability::Default),
                "--durable" => this.options.durability(Durability::Durable),
                "--redis8" => this.options.flavor(Flavor::Redis8),
                "--valkey" => this.options.flavor(Flavor::Valkey),
                option if option.starts_with('-') => {
                    return Err(Failure::Usage(format!("unknown option `{option}`")));
                }
                name => {
                    this.topologies.push(name.parse().map_err(Failure::Usage)?);
                    this.options
                }
            };
        }
        if this.topologies.is_empty() {
            return Err(Failure::Usage("name a topology to start".into()));
        }
        Ok(this)
    }

    /// Runs in the foreground: the servers end with this process, whatever ends it.
    fn run(&self) -> Result<(), Failure> {
        let mut clusters = Vec::new();
        for &topology in &self.topologies {
            let begin = Instant::now();
            let cluster = start(topology, &self.options)?;
            if self.json {
                print(json(&cluster))?;
            } else {
                show(&cluster, begin.elapsed())?;
            }
            clusters.push(cluster);
        }
        let _entry = Running::register(&clusters)?;
        if !self.json {
            print(format_args!(
                "Ctrl-C, the end of standard input, or `cargo xtask servers stop` ends it."
            ))?;
        }
        let mut buffer = [0; 1024];
        while io::stdin().read(&mut buffer)? > 0 {}
        Ok(())
    }
}

fn show(cluster: &Cluster, took: Duration) -> Result<(), Failure> {
    let topology = cluster.topology();
    print(format_args!("{topology}: {} (ready in {} ms)", cluster.url(), took.as_millis()))?;
    for node in cluster.nodes() {
        let pid = node.pid().unwrap_or_default();
        print(format_args!("  {:8} {}  pid {pid}", node.name(), node.url()))?;
    }
    print(format_args!("  logs and data: {}", cluster.dir().display()))
}

fn json(cluster: &Cluster) -> String {
    let nodes: Vec<String> = cluster.nodes().iter().map(json_of_node).collect();
    format!(
        r#"{{"topology":"{}","url":"{}","dir":{:?},"nodes":[{}]}}"#,
        cluster.topology(),
        cluster.url(),
        cluster.dir().display().to_string(),
        nodes.join(",")
    )
}

fn json_of_node(node: &Node) -> String {
    let role = match node.role() {
        Role::Member => "member",
        Role::Sentinel => "sentinel",
    };
    format!(
        r#"{{"name":"{}","role":"{role}","url":"{}","host":"{}","port":{},"pid":{}}}"#,
        node.name(),
        node.url(),
        node.host(),
        node.port(),
        node.pid().unwrap_or_default()
    )
}

/// An entry for `list` and `stop`: a file named after the process that runs servers. The process
/// locks it until it ends, so that a file that was left behind can be detected.
struct Running {
    pid: i32,
    text: String,
    path: PathBuf,
}

impl Running {
    fn register(clusters: &[Cluster]) -> io::Result<File> {
        fs::create_dir_all(Self::folder())?;
        let path = Self::folder().join(std::process::id().to_string());
        // The URLs contain passwords.
        let mut options = File::options();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        file.lock()?;
        remove_at_exit(&path);
        for cluster in clusters {
            writeln!(file, "{}: {}", cluster.topology(), cluster.url())?;
        }
        Ok(file)
    }

    /// The entries whose process still runs.
    fn all() -> Vec<Self> {
        let entries = fs::read_dir(Self::folder()).into_iter().flatten().flatten();
        entries.filter_map(|entry| Self::read(entry.path())).collect()
    }

    fn read(path: PathBuf) -> Option<Self> {
        let file = File::open(&path).ok()?;
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            // Left behind by a process whose guardian was killed as well.
            fs::remove_file(&path).ok();
            return None;
        }
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let text = fs::read_to_string(&path).ok()?;
        Some(Self { pid, text, path })
    }

    fn folder() -> PathBuf {
        dir().join("running")
    }
}

/// Ends the processes of `start`, and waits for their end.
fn stop() -> Result<(), Failure> {
    let running = Running::all();
    if running.is_empty() {
        print(format_args!("nothing runs"))?;
    }
    for entry in running {
        let pid = Pid::from_raw(entry.pid);
        pid.map_or(Ok(()), |pid| kill_process(pid, Signal::TERM)).map_err(io::Error::from)?;
        // The guardian removes the file last.
        wait_until(Duration::from_secs(10), || {
            if entry.path.exists() {
                Err(Failure::Other(format!("process {} does not end", entry.pid)))
            } else {
                Ok(())
            }
        })?;
        print(indent("stopped ", &entry.text))?;
    }
    Ok(())
}

fn list() -> Result<(), Failure> {
    print(format_args!("{:15} {:12} where it comes from", "topology", "version"))?;
    for topology in Topology::ALL {
        let origins: Vec<_> = topology.bundles().iter().map(|&bundle| origin(bundle)).collect();
        let version = &origins[0].0;
        let sources: Vec<&str> = origins.iter().map(|(_, source)| source.as_str()).collect();
        print(format_args!("{:15} {version:12} {}", topology.name(), sources.join(", Java: ")))?;
    }
    print(format_args!("options:"))?;
    for bundle in [Bundle::Redis8, Bundle::Valkey] {
        let (version, source) = origin(bundle);
        print(format_args!("{:15} {version:12} {source}", bundle.name()))?;
    }
    print(format_args!("\nfetched into {}", dir().display()))?;
    let running = Running::all();
    print(format_args!("running: {}", if running.is_empty() { "nothing" } else { "" }))?;
    for entry in running {
        print(indent(&format!("  pid {} ", entry.pid), &entry.text))?;
    }
    Ok(())
}

/// The version of the server that would be started, and where it comes from.
fn origin(bundle: Bundle) -> (String, String) {
    if let Some((path, version)) = bundle.on_host() {
        return (version, path.display().to_string());
    }
    match bundle.fetched() {
        Some(version) => (short(&version), "fetched".into()),
        None => ("-".into(), "not fetched yet".into()),
    }
}

/// A Debian version without its epoch and revision: `5:7.0.15-1~deb12u10` is `7.0.15`.
fn short(version: &str) -> String {
    let upstream = version.split_once(':').map_or(version, |(_, rest)| rest);
    upstream.split(['-', '+', '~']).next().unwrap_or(upstream).to_owned()
}

fn indent(prefix: &str, text: &str) -> String {
    text.lines().map(|line| format!("{prefix}{line}")).collect::<Vec<_>>().join("\n")
}
