//! The cases, and how they are run.

use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::Signal;
use serde_json::Value;
use tenure_servers::wire::redis::execute;
use tenure_servers::{Cluster, Options, Topology, require, start};

use crate::support::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tenure");

pub(crate) fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let mut trials = vec![
        case("a_password_is_withheld_from_the_command", Topology::Redis, password),
        case("a_wrong_password_gets_no_advice_to_use_another_store", Topology::Redis, denied),
        case("a_run_waits_for_a_server_that_is_down", Topology::Redis, down),
        case("a_client_retries_an_unreachable_server_only_if_configured", Topology::Redis, library),
        case("nodes_that_just_started_are_reported_as_the_reason", Topology::Redis5, young),
        case("the_lease_lasts_for_at_least_after_a_crash", Topology::Redis, crash),
    ];
    #[cfg(feature = "lab")]
    trials.push(case("oversell_alone_compares_three_ways_to_sell", Topology::Redis, oversell));
    for topology in [
        Topology::Consul,
        Topology::Etcd,
        Topology::Mariadb,
        Topology::Postgres,
        Topology::Redis,
        Topology::Zookeeper,
    ] {
        let name = format!("{}::a_lock_is_kept_whatever_the_longest_lease", topology.name());
        trials.push(case(&name, topology, kept));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn case(name: &str, topology: Topology, run: fn(&Cluster)) -> Trial {
    Trial::ignorable_test(name, move || {
        match start(topology, &Options::default()) {
            Ok(cluster) => run(&cluster),
            Err(error) if error.is_missing() && !require(topology.name()) => {
                return Ok(Completion::ignored_with(error));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Completion::Completed)
    })
}

/// The address, user and password of this Redis. A server without a user gets one.
fn login(redis: &Cluster) -> (String, String, String) {
    let url = redis.url();
    let known = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let address = redis.node().address();
    if let Some((user, password)) = known.and_then(|(login, _)| login.split_once(':')) {
        return (address, user.to_owned(), password.to_owned());
    }
    let rights = ["ACL", "SETUSER", "op", "on", ">open-sesame", "~*", "&*", "+@all"];
    assert_eq!(execute(redis.node().port(), &rights).unwrap().text(), Some("OK"));
    (address, "op".to_owned(), "open-sesame".to_owned())
}

fn password(redis: &Cluster) {
    let (address, user, password) = login(redis);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, &password).unwrap();
    let script = "echo $TENURE_URL; exec \"$0\" ls --json";
    let run = ["run", "outer", "--", "sh", "-c", script, PROGRAM];

    let open = format!("redis://{user}:{password}@{address}/");
    let by_flag = output(&mut tenure(["--url", &open].into_iter().chain(run)));
    let by_environment = output(tenure(run).env("TENURE_URL", &open));
    for inner in [by_flag, by_environment] {
        assert_eq!(text(&inner.stdout), "withheld:\n", "{inner:?}");
        assert_eq!(code(&inner), 64, "{inner:?}");
        assert!(text(&inner.stderr).contains("because of its password"), "{inner:?}");
    }
    let named = format!("redis://{user}@{address}/?password_file={}", file.display());
    let inner = output(&mut tenure(["--url", &named].into_iter().chain(run)));
    assert_eq!(code(&inner), 0, "{inner:?}");
    assert!(text(&inner.stdout).starts_with(&named), "{inner:?}");
    assert!(text(&inner.stdout).contains("\"outer\""), "{inner:?}");
}

/// The lab starts a Redis of its own; this one shows that there is one to start.
#[cfg(feature = "lab")]
fn oversell(_: &Cluster) {
    let result = output(&mut tenure(["lab", "run", "oversell"]));
    let printed = text(&result.stdout);
    assert_eq!(code(&result), 0, "{result:?}");
    let lines: Vec<&str> = printed.lines().rev().take(4).collect();
    let [fenced, tenure, by_hand, empty] = lines[..] else { panic!("{printed}") };
    assert_eq!(empty, "");
    assert!(by_hand.starts_with("SET NX, DEL "), "{printed}");
    assert!(by_hand.contains("3 tickets, 4 sales: 1 ticket sold twice; it gives no token"));
    assert!(tenure.starts_with("tenure ") && tenure.ends_with("4 sales: 1 ticket sold twice"));
    assert!(fenced.starts_with("tenure with a fence "), "{printed}");
    assert!(fenced.contains("3 sales: none sold twice; the late sale"), "{printed}");
    assert_eq!(printed.matches("oversell on redis").count(), 2, "two pictures: {printed}");
}

fn denied(redis: &Cluster) {
    let (address, user, _) = login(redis);
    let url = format!("redis://{user}:wrong@{address}/");
    for verb in [&["run", "k", "--", "true"][..], &["ls"], &["wait", "k"]] {
        let output = output(tenure(["--url", &url]).args(verb));
        let messages = text(&output.stderr);
        assert_eq!(code(&output), 77, "{verb:?}: {messages}");
        assert!(messages.contains("try: check user and password"), "{messages}");
        assert!(!messages.contains("sqlite") && !messages.contains("another store"), "{messages}");
    }
}

fn down(redis: &Cluster) {
    let url = redis.url();
    let with = |option: &str| {
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}{option}")
    };
    redis.node().kill().unwrap();
    for (url, wait) in [
        (url.clone(), &["run"][..]),
        (with("outage=20s"), &["run", "--no-wait"]),
        (with("outage=20s"), &["ls"]),
        (with("outage=300ms"), &["run", "--wait", "20s"]),
        (url.clone(), &["run", "--wait", "300ms"]),
    ] {
        let begin = Instant::now();
        let mut command = tenure(["--url", &url].into_iter().chain(wait.iter().copied()));
        if wait[0] == "run" {
            command.args(["k", "--", "true"]);
        }
        let output = output(&mut command);
        assert_eq!(code(&output), 69, "{wait:?}: {output:?}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{wait:?}: {:?}", begin.elapsed());
    }
    let retried = [
        (with("outage=20s"), &["run", "k", "--", "echo", "ran"][..]),
        (url.clone(), &["run", "--wait", "20s", "k", "--", "echo", "ran"]),
        (with("outage=20s"), &["wait", "k"]),
        (url.clone(), &["wait", "--wait", "20s", "k"]),
    ];
    let start =
        |(url, args): &(String, &[&str])| Running::start(tenure(["--url", url]).args(args.iter()));
    let mut runs: Vec<Running> = retried.iter().map(start).collect();
    std::thread::sleep(Duration::from_millis(700));
    assert!(runs.iter_mut().all(|run| !run.is_over()));
    redis.node().restart().unwrap();
    for (run, (url, args)) in runs.iter_mut().zip(&retried) {
        assert_eq!(run.code(), 0, "{url} {args:?}");
        let messages = run.messages();
        let said = usize::from(args[0] == "run");
        assert_eq!(messages.matches("waiting for `k`: ").count(), said, "{args:?}: {messages}");
    }
}

fn library(redis: &Cluster) {
    let connect = |outage: Option<Duration>| {
        let mut config: tenure::Config = redis.url().parse().unwrap();
        if let Some(outage) = outage {
            config = config.outage(outage);
        }
        let (sender, events) = std::sync::mpsc::channel();
        let config = config.observe(move |event| {
            if let tenure::Event::Unavailable { key: None, .. } = event {
                let _receiver_dropped = sender.send(());
            }
        });
        (config.connect_blocking(), events.try_iter().count())
    };
    redis.node().kill().unwrap();
    for (outage, least) in [(None, 0), (Some(Duration::from_millis(500)), 2)] {
        let begin = Instant::now();
        let (client, events) = connect(outage);
        assert_eq!(client.unwrap_err().kind(), tenure::ErrorKind::Unavailable);
        assert!(begin.elapsed() >= outage.unwrap_or_default());
        assert!(events >= least && (least > 0 || events == 0), "{events} events");
    }
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(Some(LIMIT)));
        std::thread::sleep(Duration::from_millis(300));
        redis.node().restart().unwrap();
        let (client, events) = client.join().unwrap();
        client.unwrap().lock("k").acquire().unwrap().release().unwrap();
        assert!(events > 0);
    });
}

fn young(redlock: &Cluster) {
    let url = format!("redlock://{}", redlock.url().split_once("://").unwrap().1);
    let run = ["run", "--wait", "3s", "k", "--", "true"];
    let plain = output(tenure(run).env("TENURE_URL", &url));
    let messages = text(&plain.stderr);
    assert_eq!(code(&plain), 69, "{messages}");
    let said: Vec<_> = messages.lines().filter(|line| line.contains("waiting for `k`: ")).collect();
    assert_eq!(said.len(), 1, "{messages}");
    assert!(said[0].contains("0 of 5 nodes count") && said[0].contains("`longest`"), "{messages}");

    let json = ["run", "--json", "--wait", "3s", "k", "--", "true"];
    let output = output(tenure(json).env("TENURE_URL", &url));
    let first = text(&output.stderr).lines().next().unwrap().to_owned();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["event"], &first["holder"]), (&"waiting".into(), &Value::Null));
    assert!(first["reason"].as_str().unwrap().contains("nodes count"), "{first}");
}

fn crash(redis: &Cluster) {
    let url = redis.url();
    let held = |key: &str| -> u64 {
        let output = output(&mut tenure(["--url", &url, "show", "--json", key]));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        row["ttl_left_ms"].as_u64().unwrap()
    };
    let script = "echo $$";
    let args = ["--url", &url, "run", "--ttl", "2s", "--at-least", "1m", "k", "--"];
    let mut run = Running::start(&mut tenure(args.into_iter().chain(["sh", "-c", script])));
    let command = run.number();
    eventually("the command is reaped", || state(command).is_none());
    let supervisor = run.supervisor();
    send(run.launcher(), Signal::STOP);
    send(supervisor, Signal::KILL);
    run.kill();
    until_dead(supervisor);
    let left = held("k");
    assert!(left > 50_000, "{left} ms are left of the minute");
}

fn kept(server: &Cluster) {
    let url = server.url();
    let args = ["--url", &url, "run", "--at-least", "20h", "k", "--", "sh", "-c", "echo $$"];
    let mut run = Running::start(&mut tenure(args));
    let command = run.number();
    eventually("the command is reaped", || state(command).is_none());
    let busy = ["--url", &url, "run", "--no-wait", "--busy-exit", "9", "k", "--", "true"];
    assert_eq!(code(&output(&mut tenure(busy))), 9);
    let supervisor = run.supervisor();
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 0, "{}", run.messages());
    assert_eq!(code(&output(&mut tenure(busy))), 9, "in the background, too");
    send(supervisor, Signal::KILL);
    until_dead(supervisor);
}
