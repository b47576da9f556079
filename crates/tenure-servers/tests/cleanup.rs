//! No server outlives the process that started it, and a server that is not available is reported.
//! The test executes itself again as the process that ends, or that has no network.

mod parent;
mod suite;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial, run};
use tenure_servers::wire::redis::execute;
use tenure_servers::{Node, Options, Topology, start};

use parent::{EndBy, Parent, Started};
use suite::{Done, missing, trial};

/// The environment variable with the role of the process.
const ROLE: &str = "TENURE_TEST_ROLE";
/// No server listens there.
const NOWHERE: &str = "http://127.0.0.1:1/debian";

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return match role.as_str() {
            "suite" => small_suite(),
            role => parent::run(role),
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
        ends(EndBy::Kill, all),
        ends(EndBy::Interrupt, few),
        ends(EndBy::Panic, few),
        ends(EndBy::Exit, few),
        Trial::ignorable_test("a server outlives the thread that started it", thread_ends),
        Trial::ignorable_test("a dropped postgres leaves no shared memory", dropped),
        Trial::test("without a network a case is ignored with the reason", offline),
        Trial::test("a server that is required and missing is a failure", required),
        Trial::test("without apt the reason says so", without_apt),
        Trial::test("a busy mirror is retried later, an unsigned one is refused", bad_mirror),
    ];
    run(&arguments, trials).exit();
}

fn ends(end_by: EndBy, topologies: &'static [Topology]) -> Trial {
    Trial::ignorable_test(format!("no server outlives {end_by:?}"), move || {
        let mut parent = match Parent::start(end_by, topologies)? {
            Started::Ready(parent) => parent,
            Started::Missing(topology, error) => {
                return if tenure_servers::require(topology.name()) {
                    Err(error.into())
                } else {
                    Ok(Completion::ignored_with(error))
                };
            }
        };
        assert!(parent.alive().len() >= 2 * topologies.len(), "not all run: {:?}", parent.alive());
        assert!(parent.leftovers().len() >= topologies.len());
        parent.end()?;
        let ended = Instant::now();
        // Processes must end within a second; removing some hundred megabytes may take longer.
        let gone = none_within(Duration::from_secs(1), || parent.alive())?;
        none_within(Duration::from_secs(20), || parent.leftovers())?;
        eprintln!("{end_by:?}: no server after {gone:?}, no files after {:?}", ended.elapsed());
        Ok(Completion::Completed)
    })
}

/// Waits until nothing is left. Returns how long that took.
fn none_within(limit: Duration, left: impl Fn() -> Vec<String>) -> Result<Duration, String> {
    let start = Instant::now();
    tenure_servers::wait_until(limit, || match left() {
        left if left.is_empty() => Ok(start.elapsed()),
        left => Err(format!("left after {:?}: {left:?}", start.elapsed())),
    })
}

/// A parent-death signal would kill the server here.
fn thread_ends() -> Result<Completion, Failed> {
    let started = thread::spawn(|| start(Topology::Redis, &Options::default())).join();
    match started.expect("the thread does not panic") {
        Ok(cluster) => {
            execute(cluster.node().port(), &["PING"])?;
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
        let segment = parent::shared_memory(cluster.node()).expect("it runs");
        assert!(parent::is_shared_memory(&segment));
        before(cluster.node())?;
        drop(cluster);
        assert!(!parent::is_shared_memory(&segment));
    }
    Ok(Completion::Completed)
}

/// A suite of two cases, as other crates write them.
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

fn offline() -> Done {
    let (ok, text) = suite_with(NOWHERE, &[])?;
    assert!(ok, "{text}");
    assert!(text.contains("2 ignored"), "{text}");
    assert_eq!(
        text.matches("requesting the package lists").count(),
        1,
        "both are in bookworm: {text}"
    );
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
    let (port, requests) = busy_and_unsigned_mirror()?;
    let (ok, text) = suite_with(&format!("http://127.0.0.1:{port}/debian"), &[])?;
    assert!(ok, "{text}");
    let requests: Vec<Instant> = requests.try_iter().collect();
    assert!(requests.len() >= 2, "{} requests: {text}", requests.len());
    let pause = requests[1] - requests[0];
    assert!(pause >= Duration::from_secs(2), "retried after {pause:?}");
    assert!(text.contains("the mirror is busy; next try in 2 s"), "{text}");
    assert!(text.contains("ignored (could not get redis: "), "{text}");
    Ok(())
}

/// A mirror that responds to the first request with "too many requests" and to all others with
/// nonsense.
fn busy_and_unsigned_mirror() -> std::io::Result<(u16, Receiver<Instant>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let (sender, requests) = channel();
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
    Ok((port, requests))
}
