//! Measures the SQLite backend: the figures of `docs/backends/sqlite.md`.
//!
//! `cargo run --release -p tenure --features sqlite --example sqlite_figures`

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure::backend::{Backend, Claim, Mode, Owner, Scope};
use tenure::backends::Sqlite;
use tenure::{Attempt, Key};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure().await,
        ["wait", url] => wait(url).await,
        ["race", url, times, file] => race(url, times.parse()?, file).await,
        other => Err(format!("unknown arguments {other:?}").into()),
    }
}

async fn measure() -> Result {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    let store = Sqlite::open(&url).await?;
    cycles(&store).await?;
    openings(&url).await?;
    for count in [10, 100] {
        readers(&url, count).await?;
    }
    crowd(&store).await?;
    handoffs(&store, &url, false).await?;
    handoffs(&store, &url, true).await?;
    idle_waiters(&store, &url).await?;
    processes(&url, &folder.path().join("counter"))
}

/// Acquire and release a lock that no other process uses.
async fn cycles(store: &Sqlite) -> Result {
    let mut times = Vec::new();
    for _ in 0..5000 {
        let claim = claim("cycle", false)?;
        let began = Instant::now();
        acquire(store, &claim).await?;
        store.release(&claim).await?;
        times.push(began.elapsed());
    }
    report("acquire + release", times);
    Ok(())
}

/// The cost of a short-lived program: open, acquire, release, close.
async fn openings(url: &str) -> Result {
    let mut times = Vec::new();
    for _ in 0..500 {
        let claim = claim("opening", false)?;
        let began = Instant::now();
        let store = Sqlite::open(url).await?;
        acquire(&store, &claim).await?;
        store.release(&claim).await?;
        drop(store);
        times.push(began.elapsed());
    }
    report("open + acquire + release + close", times);
    Ok(())
}

/// From the release of a writer until so many readers of another session have confirmed that they
/// hold, and from their last release until the next writer holds.
async fn readers(url: &str, count: usize) -> Result {
    let (one, two) = (Sqlite::open(url).await?, Sqlite::open(url).await?);
    let (mut granted, mut returned) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let (writer, next) = (claim("readers", true)?, claim("readers", true)?);
        acquire(&one, &writer).await?;
        let mut waiting = Vec::new();
        for _ in 0..count {
            waiting.push(reader("readers", true)?);
        }
        for reader in &waiting {
            let _busy = two.try_acquire(reader).await?;
        }
        let _busy = one.try_acquire(&next).await?;
        let began = Instant::now();
        one.release(&writer).await?;
        for reader in &waiting {
            acquire(&two, reader).await?;
        }
        granted.push(began.elapsed());
        let began = Instant::now();
        for reader in &waiting {
            two.release(reader).await?;
        }
        acquire(&one, &next).await?;
        returned.push(began.elapsed());
        one.release(&next).await?;
    }
    report(&format!("writer → {count} readers hold"), granted);
    report(&format!("{count} readers → writer holds"), returned);
    Ok(())
}

/// A reader more, beside a thousand.
async fn crowd(store: &Sqlite) -> Result {
    let mut held = Vec::new();
    for _ in 0..1000 {
        held.push(reader("crowd", false)?);
    }
    for reader in &held {
        acquire(store, reader).await?;
    }
    let mut times = Vec::new();
    for _ in 0..200 {
        let reader = reader("crowd", false)?;
        let began = Instant::now();
        acquire(store, &reader).await?;
        store.release(&reader).await?;
        times.push(began.elapsed());
    }
    report("the same, beside 1,000 readers", times);
    for reader in &held {
        store.release(reader).await?;
    }
    Ok(())
}

/// From the release, or the end of the process, of a holder to the grant of a waiter in another
/// process.
async fn handoffs(store: &Sqlite, url: &str, kill: bool) -> Result {
    let mut times = Vec::new();
    for _ in 0..40 {
        let mut first = Waiter::start(url)?;
        let mut began = Instant::now();
        let mine = claim("handoff", true)?;
        if kill {
            first.wait_for_grant()?;
        } else {
            first.kill()?;
            acquire(store, &mine).await?;
        }
        let mut second = Waiter::start(url)?;
        let key = Key::new("handoff")?;
        while store.list(Scope::Key(&key)).await?[0].waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if kill {
            began = Instant::now();
            first.kill()?;
        } else {
            began = began.max(Instant::now());
            store.release(&mine).await?;
        }
        second.wait_for_grant()?;
        times.push(began.elapsed());
        second.kill()?;
    }
    report(if kill { "kill -9 → waiter holds" } else { "release → waiter holds" }, times);
    Ok(())
}

/// The processor time of ten waiters in ten processes.
async fn idle_waiters(store: &Sqlite, url: &str) -> Result {
    let mine = claim("handoff", true)?;
    acquire(store, &mine).await?;
    let mut waiters = (0..10).map(|_| Waiter::start(url)).collect::<Result<Vec<_>>>()?;
    while store.list(Scope::Key(&mine.key)).await?[0].waiters.len() < 10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let spent = |waiters: &[Waiter]| waiters.iter().map(Waiter::nanoseconds).sum::<Result<u64>>();
    let before = spent(&waiters)?;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let share = (spent(&waiters)? - before) as f64 / began.elapsed().as_nanos() as f64;
    println!("{:32} {:.3} % of one core together", "ten idle waiters", share * 100.0);
    waiters.iter_mut().try_for_each(Waiter::kill)?;
    store.release(&mine).await?;
    Ok(())
}

/// Fifty processes add to one number two hundred times each.
fn processes(url: &str, counter: &std::path::Path) -> Result {
    std::fs::write(counter, "0 0")?;
    let began = Instant::now();
    let file = counter.to_str().ok_or("a path that is not UTF-8")?;
    let children = (0..50).map(|_| run(&["race", url, "200", file])).collect::<Result<Vec<_>>>()?;
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a process failed".into());
        }
    }
    let counted = std::fs::read_to_string(counter)?;
    let count = counted.split(' ').next().unwrap_or_default().to_owned();
    println!("{:32} {count} in {:.1} s", "50 processes × 200", began.elapsed().as_secs_f64());
    if count == "10000" { Ok(()) } else { Err("an update was lost".into()) }
}

async fn wait(url: &str) -> Result {
    let store = Sqlite::open(url).await?;
    acquire(&store, &claim("handoff", true)?).await?;
    println!("held");
    std::io::stdout().flush()?;
    std::future::pending().await
}

async fn race(url: &str, times: u32, file: &str) -> Result {
    let store = Sqlite::open(url).await?;
    for _ in 0..times {
        let claim = claim("race", true)?;
        let token = acquire(&store, &claim).await?;
        let text = std::fs::read_to_string(file)?;
        let (count, last) = text.split_once(' ').ok_or("a torn counter")?;
        if last.parse::<u64>()? >= token {
            return Err(format!("token {token} came after {last}").into());
        }
        std::fs::write(file, format!("{} {token}", count.parse::<u64>()? + 1))?;
        if !store.release(&claim).await? {
            return Err("the lock was lost".into());
        }
    }
    Ok(())
}

fn claim(key: &str, waits: bool) -> Result<Claim> {
    let mut claim = Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(30));
    claim.waits = waits;
    Ok(claim)
}

fn reader(key: &str, waits: bool) -> Result<Claim> {
    let mut claim = claim(key, waits)?;
    claim.mode = Mode::Shared;
    Ok(claim)
}

async fn acquire(store: &Sqlite, claim: &Claim) -> Result<u64> {
    loop {
        match store.try_acquire(claim).await? {
            Attempt::Granted(grant) => return Ok(grant.token.get()),
            Attempt::Busy(_) => {
                // As the client does: at least every third of the ttl.
                let hint = store.until_free(claim);
                let _ignored = tokio::time::timeout(claim.ttl / 3, hint).await;
            }
        }
    }
}

/// Another process of this program, which waits for the key and then holds it.
struct Waiter {
    child: Child,
}

impl Waiter {
    fn start(url: &str) -> Result<Waiter> {
        Ok(Waiter { child: run(&["wait", url])? })
    }

    fn wait_for_grant(&mut self) -> Result {
        let output = self.child.stdout.take().ok_or("was granted before")?;
        BufReader::new(output).read_line(&mut String::new())?;
        Ok(())
    }

    fn kill(&mut self) -> Result {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Processor time of all its threads so far.
    fn nanoseconds(&self) -> Result<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let spent = std::fs::read_to_string(task?.path().join("schedstat"))?;
            sum += spent.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(sum)
    }
}

fn run(arguments: &[&str]) -> Result<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?)
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{what:32} p50 {:?}  p99 {:?}  max {:?}", at(0.5), at(0.99), at(1.0));
}
