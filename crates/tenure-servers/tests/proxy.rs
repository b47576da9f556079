//! The proxy, in front of a server that answers each line with the same line.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the answer")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tenure_servers::{Direction, Proxy};

/// A server, and a link to it. What the server got can be seen at the other end.
struct Bench {
    proxy: Proxy,
    got: Receiver<String>,
}

impl Bench {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, got) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, sender) = (stream.unwrap(), sender.clone());
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    while let Some(Ok(line)) = lines.next() {
                        // The test may be over.
                        sender.send(line.clone()).ok();
                        (&stream).write_all(format!("{line}\n").as_bytes()).ok();
                    }
                    sender.send(GONE.into()).ok();
                });
            }
        });
        Self { proxy: Proxy::start(port).unwrap(), got }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.proxy.address()).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    /// What the server got next.
    fn server_got(&self) -> String {
        self.got.recv_timeout(LONG).expect("the server got nothing")
    }
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn send(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn receive(&mut self, limit: Duration) -> std::io::Result<String> {
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn echo(&mut self, line: &str) {
        self.send(line);
        assert_eq!(self.receive(LONG).unwrap(), line);
    }

    fn is_silent(&mut self) -> bool {
        let silence = self.receive(Duration::from_millis(200));
        matches!(silence, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn is_reset(&mut self) -> bool {
        let end = self.receive(LONG);
        matches!(end, Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

const LONG: Duration = Duration::from_secs(20);

/// What the server notes when a client has gone.
const GONE: &str = "gone";

#[test]
fn requests_of_all_connections_are_counted() {
    let bench = Bench::start();
    assert_eq!(bench.proxy.requests(), 0);
    let (mut one, mut two) = (bench.client(), bench.client());
    for line in ["1", "2", "3"] {
        one.echo(line);
    }
    two.echo("4");
    assert_eq!(bench.proxy.requests(), 4);
}

#[test]
fn bytes_pass_both_ways_and_so_does_the_end() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    client.echo("two");
    let long = "x".repeat(300_000);
    client.echo(&long);
    client.stream.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_cut_holds_up_and_healing_delivers() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("before");
    assert_eq!(bench.server_got(), "before");
    bench.proxy.cut();
    client.send("held");
    assert!(client.is_silent());
    assert!(bench.got.try_recv().is_err(), "a cut link let a request through");
    let mut newcomer = bench.client();
    newcomer.send("new");
    assert!(newcomer.is_silent());
    bench.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "held");
    assert_eq!(newcomer.receive(LONG).unwrap(), "new");
}

#[test]
fn one_way_can_be_cut_alone() {
    let bench = Bench::start();
    let mut client = bench.client();
    bench.proxy.cut_one_way(Direction::ToClient);
    client.send("done in secret");
    assert_eq!(bench.server_got(), "done in secret");
    assert!(client.is_silent());
    bench.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "done in secret");
    bench.proxy.cut_one_way(Direction::ToServer);
    client.send("not yet");
    assert!(client.is_silent());
    assert!(bench.got.try_recv().is_err(), "the way to the server was open");
    bench.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "not yet");
}

#[test]
fn a_delay_is_added_each_way_and_not_per_chunk() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("warm");
    bench.proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    client.echo("late");
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());

    // Ten lines one after another travel together: not ten times the delay.
    let start = Instant::now();
    for i in 0..10 {
        client.send(&i.to_string());
        thread::sleep(Duration::from_millis(5));
    }
    for i in 0..10 {
        assert_eq!(client.receive(LONG).unwrap(), i.to_string());
    }
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn a_rate_limits_bytes_per_second() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("warm");
    bench.proxy.rate(10_000);
    let start = Instant::now();
    client.echo(&"x".repeat(3_000));
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    bench.proxy.heal();
    client.echo(&"x".repeat(1_000_000));
}

#[test]
fn the_nth_answer_is_swallowed_with_its_connection() {
    let bench = Bench::start();
    let mut client = bench.client();
    let mut other = bench.client();
    client.echo("zero");
    bench.proxy.swallow_answer(3);
    client.echo("one");
    other.echo("two");
    client.send("three");
    assert!(client.is_reset());
    // The work was done all the same, and others are not concerned.
    for line in ["zero", "one", "two", "three"] {
        assert_eq!(bench.server_got(), line);
    }
    other.echo("four");
    bench.client().echo("five");
}

#[test]
fn a_reset_tears_what_is_open_and_lets_in_what_is_new() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    bench.proxy.reset();
    assert!(client.is_reset());
    bench.client().echo("two");
}

#[test]
fn a_reset_ends_a_link_that_is_cut() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    bench.proxy.cut();
    client.send("held");
    assert!(client.is_silent());
    bench.proxy.reset();
    assert!(client.is_reset());
}

#[test]
fn a_reset_does_not_wait_for_a_delay() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    bench.proxy.delay(Duration::from_secs(3600));
    client.send("under way");
    assert!(client.is_silent());
    bench.proxy.reset();
    assert!(client.is_reset());
}

#[test]
fn the_death_of_a_client_behind_a_cut_is_not_seen_until_it_is_healed() {
    for rudely in [false, true] {
        let bench = Bench::start();
        let mut client = bench.client();
        client.echo("one");
        assert_eq!(bench.server_got(), "one");
        if rudely {
            // Who closes without having read what came says so with a reset.
            client.send("unread");
            assert_eq!(bench.server_got(), "unread");
            client.stream.get_ref().peek(&mut [0]).unwrap();
        }
        bench.proxy.cut();
        drop(client);
        let seen = bench.got.recv_timeout(Duration::from_millis(200));
        assert!(seen.is_err(), "the server saw through a cut link: {seen:?}");
        bench.proxy.heal();
        assert_eq!(bench.server_got(), GONE);
    }
}

#[test]
fn a_refusing_link_resets_newcomers_until_it_is_healed() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    bench.proxy.refuse();
    assert!(client.is_reset());
    assert!(bench.client().is_reset());
    bench.proxy.heal();
    bench.client().echo("two");
}

#[test]
fn a_dropped_proxy_closes_its_port_and_its_connections() {
    let bench = Bench::start();
    let mut client = bench.client();
    client.echo("one");
    let address = bench.proxy.address();
    drop(bench.proxy);
    assert!(client.is_reset());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_server_that_is_down_resets_the_client() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::start(nobody).unwrap();
    let mut client =
        Client { stream: BufReader::new(TcpStream::connect(proxy.address()).unwrap()) };
    assert!(client.is_reset());
}
