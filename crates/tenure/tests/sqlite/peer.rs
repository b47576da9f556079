//! Another process: this test program once more, which executes one command per line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::backend::{Backend, Claim, HolderInfo, Mode, Owner};
use tenure::backends::Sqlite;
use tenure::{Attempt, Key};

const MARK: &str = "peer> ";

/// A process that is killed when this is dropped.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    responses: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(url: &str) -> Peer {
        let mut peer = Peer::idle();
        assert_eq!(peer.request(&format!("open {url}")), "open");
        peer
    }

    pub(crate) fn idle() -> Peer {
        Peer::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Command)) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        change(&mut command);
        Peer::spawn(command)
    }

    /// Starts a peer by a command that runs the arguments appended to it.
    pub(crate) fn behind(mut command: Command) -> Peer {
        command.arg(std::env::current_exe().unwrap());
        Peer::spawn(command)
    }

    fn spawn(mut command: Command) -> Peer {
        command.args(["--exact", "peer::a_peer_responds_or_executes", "--nocapture"]);
        command.env("TENURE_TEST_PEER", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, responses) = channel();
        std::thread::spawn(move || {
            // The test harness prints other lines.
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned)) {
                let _ignored = sender.send(line);
            }
        });
        Peer { child, commands, responses }
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    pub(crate) fn response(&mut self) -> String {
        self.responses.recv_timeout(crate::SOON).expect("the peer has ended, or does not response")
    }

    pub(crate) fn request(&mut self, command: &str) -> String {
        self.send(command);
        self.response()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process, and returns when all its threads are stopped: on a busy machine some run
    /// on for a while after the signal.
    pub(crate) fn stop(&self) {
        signal(self.pid() as i32, Signal::STOP);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !self.is_stopped() {
            assert!(std::time::Instant::now() < deadline, "the peer does not stop");
            std::thread::yield_now();
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut stats =
            tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("stat")));
        stats.all(|stat| stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T')))
    }

    pub(crate) fn resume(&self) {
        signal(self.pid() as i32, Signal::CONT);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ignored = self.child.kill();
        let _ignored = self.child.wait();
    }
}

pub(crate) fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_peer_responds_or_executes() {
    if std::env::var_os("TENURE_TEST_PEER").is_some() {
        return execute();
    }
    let mut peer = Peer::idle();
    assert_eq!(
        peer.request("open sqlite:~"),
        "Invalid: `~` is not expanded in `sqlite:~`; write the path out"
    );
    peer.kill();
}

fn execute() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut state = State::default();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let response = runtime.block_on(state.execute(&words));
        println!("\n{MARK}{response}");
    }
}

#[derive(Default)]
struct State {
    store: Option<Sqlite>,
    claim: Option<Claim>,
    /// Kept open with its transaction.
    raw: Option<rusqlite::Connection>,
    children: Vec<Child>,
}

impl State {
    async fn execute(&mut self, words: &[&str]) -> String {
        match words {
            ["open", url] => match Sqlite::open(url).await {
                Ok(store) => {
                    self.store = Some(store);
                    "open".to_owned()
                }
                Err(error) => format!("{:?}: {error}", error.kind()),
            },
            ["sql", file, sql @ ..] => {
                let raw = rusqlite::Connection::open(file).unwrap();
                raw.execute_batch(&sql.join(" ")).unwrap();
                self.raw = Some(raw);
                "done".to_owned()
            }
            [verb @ ("try_acquire" | "shared"), key] => {
                let claim = new_claim(key, false, *verb == "shared");
                let attempt = self.store().try_acquire(&claim).await.unwrap();
                self.claim = Some(claim);
                match attempt {
                    Attempt::Granted(grant) => format!("granted {}", grant.token),
                    Attempt::Busy(_) => "busy".to_owned(),
                }
            }
            [verb @ ("acquire" | "acquire_shared"), key] => {
                let claim = new_claim(key, true, *verb == "acquire_shared");
                let token = acquire(self.store(), &claim).await;
                self.claim = Some(claim);
                format!("granted {token}")
            }
            ["release"] => {
                let claim = self.claim.take().unwrap();
                self.store().release(&claim).await.unwrap().to_string()
            }
            ["spawn"] => self.spawn().to_string(),
            [verb @ ("count" | "mix"), key, times, path] => {
                for round in 0..times.parse::<u32>().unwrap() {
                    match *verb {
                        "count" => count(self.store(), key, path).await,
                        _ => mix(self.store(), key, Path::new(path), round).await,
                    }
                }
                if *verb == "mix" { "mixed" } else { "counted" }.to_owned()
            }
            other => panic!("cannot execute {other:?}"),
        }
    }

    /// Starts a child process, without the standard streams of this one, whose reader would wait
    /// for it.
    fn spawn(&mut self) -> u32 {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        pid
    }

    fn store(&self) -> &Sqlite {
        self.store.as_ref().unwrap()
    }
}

fn new_claim(key: &str, waits: bool, shared: bool) -> Claim {
    let ttl = Duration::from_secs(60);
    let mut claim = Claim::new(Key::new(key).unwrap(), Owner::random(), ttl);
    claim.waits = waits;
    if shared {
        claim.mode = Mode::Shared;
    }
    claim.holder_info = HolderInfo::new("peer", "here", std::process::id(), "");
    claim
}

async fn acquire(store: &Sqlite, claim: &Claim) -> u64 {
    loop {
        match store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant.token.get(),
            Attempt::Busy(_) => assert_eq!(store.until_free(claim).await, None),
        }
    }
}

/// Writes the same number to two files as a writer, or reads both as a reader, by turns. Every
/// other writer goes on as a reader.
async fn mix(store: &Sqlite, key: &str, folder: &Path, round: u32) {
    let number = |name: &str| -> u64 {
        std::fs::read_to_string(folder.join(name)).unwrap().trim().parse().unwrap()
    };
    let reads = !round.is_multiple_of(3);
    let mut claim = new_claim(key, true, reads);
    if reads {
        acquire(store, &claim).await;
        let one = number("one");
        tokio::task::yield_now().await;
        assert_eq!(one, number("two"), "a writer wrote while a reader read");
    } else {
        let token = acquire(store, &claim).await;
        let next = number("one") + 1;
        for name in ["one", "two"] {
            std::fs::write(folder.join(name), next.to_string()).unwrap();
            tokio::task::yield_now().await;
        }
        if round.is_multiple_of(2) {
            (claim.mode, claim.token) = (Mode::Shared, tenure::FencingToken::new(token));
            assert_eq!(acquire(store, &claim).await, token);
            assert_eq!(number("one"), next);
        }
    }
    assert!(store.release(&claim).await.unwrap());
}

/// Adds one to a number in a file, and fails for a token that is not the highest yet.
async fn count(store: &Sqlite, key: &str, file: &str) {
    let claim = new_claim(key, true, false);
    let token = acquire(store, &claim).await;
    let text = std::fs::read_to_string(file).unwrap();
    let (counted, last) = text.split_once(' ').unwrap();
    let (counted, last) = (counted.parse::<u64>().unwrap(), last.parse::<u64>().unwrap());
    assert!(token > last, "token {token} came after {last}");
    std::fs::write(file, format!("{} {token}", counted + 1)).unwrap();
    assert!(store.release(&claim).await.unwrap());
}
