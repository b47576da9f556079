//! A process that starts servers and then ends: its own code, and the view of the test.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tenure_servers::{Error, Node, Options, Topology, shared, start};

/// What ends the process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndBy {
    Exit,
    Interrupt,
    Kill,
    Panic,
}

/// The process, and what it has reported.
pub(crate) struct Parent {
    child: Child,
    end_by: EndBy,
    pids: Vec<u32>,
    ports: Vec<u16>,
    dirs: Vec<String>,
    /// Segments of shared memory.
    segments: Vec<String>,
}

/// The result of starting the process.
pub(crate) enum Started {
    Ready(Parent),
    /// This server is not available, with the reason.
    Missing(Topology, String),
}

impl Parent {
    /// Starts the process and waits until its servers run.
    pub(crate) fn start(end_by: EndBy, topologies: &[Topology]) -> io::Result<Started> {
        let names: Vec<&str> = topologies.iter().map(|topology| topology.name()).collect();
        let mut child = Command::new(std::env::current_exe()?)
            .env(crate::ROLE, names.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Like a terminal's foreground job, so that Ctrl-C reaches only this process.
            .process_group(0)
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut parent = Self {
            child,
            end_by,
            pids: Vec::new(),
            ports: Vec::new(),
            dirs: Vec::new(),
            segments: Vec::new(),
        };
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "pid" => parent.pids.extend(rest.parse::<u32>()),
                "port" => parent.ports.extend(rest.parse::<u16>()),
                "segment" => parent.segments.push(rest.to_owned()),
                "dir" => parent.dirs.push(rest.to_owned()),
                "missing" => {
                    let (name, reason) = rest.split_once(' ').unwrap_or((rest, ""));
                    let topology = name.parse().map_err(io::Error::other)?;
                    return Ok(Started::Missing(topology, reason.to_owned()));
                }
                "ready" => return Ok(Started::Ready(parent)),
                _ => return Err(io::Error::other(line)),
            }
        }
        Err(io::Error::other("it ended before it was ready"))
    }

    /// Ends the process.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process id");
        match self.end_by {
            EndBy::Kill => kill_process(pid, Signal::KILL)?,
            EndBy::Interrupt => kill_process_group(pid, Signal::INT)?,
            EndBy::Exit => self.send("exit")?,
            EndBy::Panic => self.send("panic")?,
        }
        self.child.wait()?;
        Ok(())
    }

    /// The servers' processes that run and their ports that are in use.
    pub(crate) fn alive(&self) -> Vec<String> {
        let pids = self.pids.iter().filter(|&&pid| runs(pid)).map(|pid| format!("pid {pid}"));
        let ports = self.ports.iter().filter(|&&port| !is_free(port));
        pids.chain(ports.map(|port| format!("port {port}"))).collect()
    }

    /// The servers' folders and shared memory that still exist.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let dirs = self.dirs.iter().filter(|dir| Path::new(dir).exists()).cloned();
        let segments = self.segments.iter().filter(|segment| is_shared_memory(segment));
        dirs.chain(segments.map(|segment| format!("shared memory {segment}"))).collect()
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}")
    }
}

/// The code of the process: starts the servers, reports them, and waits for its end.
pub(crate) fn run(names: &str) {
    let mut clusters = Vec::new();
    for name in names.split(',') {
        let topology: Topology = name.parse().expect("the test knows the names");
        let cluster = match topology {
            // A static is not dropped at the end of the process.
            Topology::Redis => shared(topology),
            _ => start(topology, &Options::default()).map(|cluster| &*Box::leak(Box::new(cluster))),
        };
        match cluster {
            Ok(cluster) => clusters.push(cluster),
            Err(error) => return println!("missing {name} {}", one_line(&error)),
        }
    }
    for cluster in &clusters {
        println!("dir {}", cluster.dir().display());
        for node in cluster.nodes() {
            let pid = node.pid().expect("it was just started");
            println!("pid {pid}\nport {}", node.port());
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            for child in children.unwrap_or_default().split_whitespace() {
                println!("pid {child}");
            }
            // A stopped process notices neither a closed pipe nor the end of its parent.
            if cluster.topology() == Topology::Postgres {
                println!("segment {}", shared_memory(node).expect("it runs"));
                node.pause().expect("it runs");
            }
        }
    }
    println!("ready");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("the test says when");
    match line.trim() {
        "exit" => std::process::exit(0),
        "panic" => panic!("as requested"),
        other => panic!("unknown request {other:?}"),
    }
}

/// The number of PostgreSQL's segment of shared memory, which the system does not remove by itself.
pub(crate) fn shared_memory(node: &Node) -> Option<String> {
    let note = fs::read_to_string(node.dir().join("data/postmaster.pid")).ok()?;
    note.lines().nth(6)?.split_whitespace().nth(1).map(str::to_owned)
}

pub(crate) fn is_shared_memory(segment: &str) -> bool {
    let all = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    all.lines().any(|line| line.split_whitespace().nth(1) == Some(segment))
}

fn one_line(error: &Error) -> String {
    error.to_string().replace('\n', " ")
}

/// Whether a process runs. A zombie has ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
