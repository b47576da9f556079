//! A process that starts servers and dies, seen from both sides.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tenure_servers::{Error, Node, Options, Topology, shared, start};

/// How it dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    Exit,
    Interrupt,
    Kill,
    Panic,
}

/// The process, and what it said of itself.
pub(crate) struct Victim {
    child: Child,
    death: Death,
    pids: Vec<u32>,
    ports: Vec<u16>,
    dirs: Vec<String>,
    /// Pieces of shared memory.
    pieces: Vec<String>,
}

impl Victim {
    /// Starts it and waits until its servers run; or what is missing.
    pub(crate) fn start(
        death: Death,
        topologies: &[Topology],
    ) -> io::Result<Result<Self, (Topology, String)>> {
        let names: Vec<&str> = topologies.iter().map(|topology| topology.name()).collect();
        let mut child = Command::new(std::env::current_exe()?)
            .env(crate::ROLE, names.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Like a terminal's foreground job, so that Ctrl-C is for it alone.
            .process_group(0)
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let (pids, ports, dirs, pieces) = Default::default();
        let mut victim = Self { child, death, pids, ports, dirs, pieces };
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "pid" => victim.pids.extend(rest.parse::<u32>()),
                "port" => victim.ports.extend(rest.parse::<u16>()),
                "piece" => victim.pieces.push(rest.to_owned()),
                "dir" => victim.dirs.push(rest.to_owned()),
                "missing" => {
                    let (name, reason) = rest.split_once(' ').unwrap_or((rest, ""));
                    let topology = name.parse().map_err(io::Error::other)?;
                    return Ok(Err((topology, reason.to_owned())));
                }
                "ready" => return Ok(Ok(victim)),
                _ => return Err(io::Error::other(line)),
            }
        }
        Err(io::Error::other("it ended before it was ready"))
    }

    /// Lets it die its death.
    pub(crate) fn die(&mut self) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process id");
        match self.death {
            Death::Kill => kill_process(pid, Signal::KILL)?,
            Death::Interrupt => kill_process_group(pid, Signal::INT)?,
            Death::Exit => self.tell("exit")?,
            Death::Panic => self.tell("panic")?,
        }
        self.child.wait()?;
        Ok(())
    }

    /// Which of its processes run and which of its ports are taken.
    pub(crate) fn alive(&self) -> Vec<String> {
        let pids = self.pids.iter().filter(|&&pid| runs(pid)).map(|pid| format!("pid {pid}"));
        let ports = self.ports.iter().filter(|&&port| !is_free(port));
        pids.chain(ports.map(|port| format!("port {port}"))).collect()
    }

    /// What else is left of it: folders and shared memory.
    pub(crate) fn litter(&self) -> Vec<String> {
        let dirs = self.dirs.iter().filter(|dir| Path::new(dir).exists()).cloned();
        let pieces = self.pieces.iter().filter(|piece| is_shared_memory(piece));
        dirs.chain(pieces.map(|piece| format!("shared memory {piece}"))).collect()
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}")
    }
}

/// The victim's side: starts what it was told to, says so, and waits for its death.
pub(crate) fn play(names: &str) {
    let mut clusters = Vec::new();
    for name in names.split(',') {
        let topology: Topology = name.parse().expect("the parent knows the names");
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
            // Who is stopped sees no pipe close and no parent die.
            if cluster.topology() == Topology::Postgres {
                println!("piece {}", shared_memory(node).expect("it runs"));
                node.pause().expect("it runs");
            }
        }
    }
    println!("ready");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("the parent says when");
    match line.trim() {
        "exit" => std::process::exit(0),
        "panic" => panic!("as asked for"),
        other => panic!("asked for {other:?}"),
    }
}

/// The number of PostgreSQL's piece of shared memory, which the system does not remove by itself.
pub(crate) fn shared_memory(node: &Node) -> Option<String> {
    let note = fs::read_to_string(node.dir().join("data/postmaster.pid")).ok()?;
    note.lines().nth(6)?.split_whitespace().nth(1).map(str::to_owned)
}

pub(crate) fn is_shared_memory(piece: &str) -> bool {
    let all = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    all.lines().any(|line| line.split_whitespace().nth(1) == Some(piece))
}

fn one_line(error: &Error) -> String {
    error.to_string().replace('\n', " ")
}

/// A zombie has ended, whoever is to blame for not reaping it.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
