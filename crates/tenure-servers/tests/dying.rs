//! Nothing outlives the process that started it, and what cannot be had is said so. The test runs
//! itself again as the process that dies, or that has no network.

mod suite;
mod victim;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial, run};
use tenure_servers::wire::redis::ask;
use tenure_servers::{Node, Options, Topology, start};

use suite::{Done, missing, trial};
use victim::{Death, Victim};

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return match role.as_str() {
            "suite" => small_suite(),
            role => victim::play(role),
        };
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let few = &[Topology::Redis, Topology::Postgres];
    let all = &[
        Topology::Consul,
        Topology::Etcd3,
        Topology::Mariadb,
        Topology::Mysql,
        Topology::Postgres,
        Topology::RedisSentinel,
        Topology::Zookeeper,
    ];
    let trials = vec![
        dies(Death::Kill, all),
        dies(Death::Interrupt, few),
        dies(Death::Panic, few),
        dies(Death::Exit, few),
        Trial::ignorable_test("a server outlives the thread that started it", thread_ends),
        Trial::ignorable_test("a dropped postgres leaves no shared memory", dropped),
        Trial::test("without a network a case is ignored with the reason", offline),
        Trial::test("a server that is required and missing is a failure", required),
        Trial::test("without apt the reason says so", without_apt),
        Trial::test("a busy mirror is asked again later, a lying one is not believed", bad_mirror),
    ];
    run(&arguments, trials).exit();
}

/// The environment variable that tells the process who it is.
const ROLE: &str = "TENURE_TEST_ROLE";

fn dies(death: Death, topologies: &'static [Topology]) -> Trial {
    Trial::ignorable_test(format!("no server outlives {death:?}"), move || {
        let mut victim = match Victim::start(death, topologies)? {
            Ok(victim) => victim,
            Err((topology, error)) => {
                return match tenure_servers::require(topology.name()) {
                    true => Err(error.into()),
                    false => Ok(Completion::ignored_with(error)),
                };
            }
        };
        assert!(victim.alive().len() >= 2 * topologies.len(), "not all run: {:?}", victim.alive());
        assert!(victim.litter().len() >= topologies.len());
        victim.die()?;
        let died = Instant::now();
        // The promise is a second for what runs; removing some hundred megabytes may take longer.
        let gone = none_within(Duration::from_secs(1), || victim.alive())?;
        none_within(Duration::from_secs(20), || victim.litter())?;
        eprintln!("{death:?}: no server after {gone:?}, no trace after {:?}", died.elapsed());
        Ok(Completion::Completed)
    })
}

/// Waits until nothing is left; returns how long that took.
fn none_within(limit: Duration, left: impl Fn() -> Vec<String>) -> Result<Duration, String> {
    let start = Instant::now();
    tenure_servers::wait_until(limit, || match left() {
        left if left.is_empty() => Ok(start.elapsed()),
        left => Err(format!("left after {:?}: {left:?}", start.elapsed())),
    })
}

/// A parent-death signal would kill it here.
fn thread_ends() -> Result<Completion, Failed> {
    let started = thread::spawn(|| start(Topology::Redis, &Options::default())).join();
    match started.expect("the thread does not panic") {
        Ok(cluster) => {
            ask(cluster.node().port(), &["PING"])?;
            Ok(Completion::Completed)
        }
        Err(error) => missing("redis", error),
    }
}

fn dropped() -> Result<Completion, Failed> {
    for before in [|_: &Node| Ok(()), Node::kill] {
        let cluster = match start(Topology::Postgres, &Options::default()) {
            Ok(cluster) => cluster,
            Err(error) => return missing("postgres", error),
        };
        let piece = victim::shared_memory(cluster.node()).expect("it runs");
        assert!(victim::is_shared_memory(&piece));
        before(cluster.node())?;
        drop(cluster);
        assert!(!victim::is_shared_memory(&piece));
    }
    Ok(Completion::Completed)
}

/// What a suite looks like.
fn small_suite() {
    let case = |topology| trial(topology, "works", Options::default(), |_| Ok(()));
    let arguments = Arguments { test_threads: Some(2), ..Arguments::default() };
    run(&arguments, vec![case(Topology::Redis), case(Topology::Mariadb)]).exit();
}

/// Runs the small suite with nothing fetched and nothing on PATH, and this mirror.
fn suite_with(mirror: &str, extra: &[(&str, &str)]) -> Result<(bool, String), Failed> {
    let empty = tempfile::tempdir()?;
    let output = Command::new(std::env::current_exe()?)
        .env(ROLE, "suite")
        .env("TENURE_SERVERS_DIR", empty.path())
        .env("TENURE_SERVERS_USE", "bundle")
        .env("TENURE_MIRROR", mirror)
        .env_remove("TENURE_REQUIRE")
        .envs(extra.iter().copied())
        .stdin(Stdio::null())
        .output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1/debian";

fn offline() -> Done {
    let (ok, text) = suite_with(NOWHERE, &[])?;
    assert!(ok, "{text}");
    assert!(text.contains("2 ignored"), "{text}");
    assert_eq!(text.matches("asking the mirror").count(), 1, "both are in bookworm: {text}");
    assert!(text.contains("ignored (could not get mariadb: "), "{text}");
    assert!(text.contains("ignored (could not get redis: "), "{text}");
    assert!(text.contains("127.0.0.1"), "the reason names the mirror: {text}");
    Ok(())
}

fn required() -> Done {
    for list in ["all", "etcd, redis"] {
        let (ok, text) = suite_with(NOWHERE, &[("TENURE_REQUIRE", list)])?;
        assert!(!ok, "{text}");
        assert!(text.contains("could not get redis: "), "{text}");
    }
    let (ok, text) = suite_with(NOWHERE, &[("TENURE_REQUIRE", "etcd")])?;
    assert!(ok, "{text}");
    Ok(())
}

fn without_apt() -> Done {
    let (ok, text) = suite_with("", &[("PATH", "/nonexistent")])?;
    assert!(ok, "{text}");
    assert!(text.contains("could not get redis: no server on PATH, and apt-get"), "{text}");
    Ok(())
}

fn bad_mirror() -> Done {
    let (port, asked) = mirror_that_is_busy_and_lies()?;
    let (ok, text) = suite_with(&format!("http://127.0.0.1:{port}/debian"), &[])?;
    assert!(ok, "{text}");
    let asked: Vec<Instant> = asked.try_iter().collect();
    assert!(asked.len() >= 2, "it was asked {} times: {text}", asked.len());
    let pause = asked[1] - asked[0];
    assert!(pause >= Duration::from_secs(2), "it was asked again after {pause:?}");
    assert!(text.contains("the mirror is busy; next try in 2 s"), "{text}");
    assert!(text.contains("ignored (could not get redis: "), "{text}");
    Ok(())
}

/// Answers the first request with "too many requests" and all others with nonsense.
fn mirror_that_is_busy_and_lies() -> std::io::Result<(u16, Receiver<Instant>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let (sender, asked) = channel();
    thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { continue };
            sender.send(Instant::now()).ok();
            let request = stream.try_clone().map(BufReader::new);
            let lines = request.into_iter().flat_map(BufRead::lines);
            lines.map_while(Result::ok).find(String::is_empty);
            let status = if count == 0 { "429 Too Many Requests" } else { "200 OK" };
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 9");
            stream.write_all(format!("{head}\r\n\r\nnonsense\n").as_bytes()).ok();
        }
    });
    Ok((port, asked))
}
