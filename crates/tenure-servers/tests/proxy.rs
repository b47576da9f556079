//! The proxy, in front of a server that responds to each line with the same line.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tenure_servers::{Direction, Proxy};

const LONG: Duration = Duration::from_secs(20);
/// What the server reports when a client has disconnected.
const DISCONNECTED: &str = "disconnected";

/// A server and a proxy in front of it. `got` has the lines that the server received.
struct EchoServer {
    proxy: Proxy,
    got: Receiver<String>,
}

impl EchoServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, got) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let sender = sender.clone();
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    while let Some(Ok(line)) = lines.next() {
                        // The test may be over.
                        sender.send(line.clone()).ok();
                        (&stream).write_all(format!("{line}\n").as_bytes()).ok();
                    }
                    sender.send(DISCONNECTED.into()).ok();
                });
            }
        });
        Self { proxy: Proxy::start(port).unwrap(), got }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.proxy.address()).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    /// The next line that the server received.
    fn next_line(&self) -> String {
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

    fn gets_no_response(&mut self) -> bool {
        let response = self.receive(Duration::from_millis(200));
        matches!(response, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn is_reset(&mut self) -> bool {
        let end = self.receive(LONG);
        matches!(end, Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

#[test]
fn requests_of_all_connections_are_counted() {
    let server = EchoServer::start();
    assert_eq!(server.proxy.requests(), 0);
    let mut one = server.client();
    let mut two = server.client();
    for line in ["1", "2", "3"] {
        one.echo(line);
    }
    two.echo("4");
    assert_eq!(server.proxy.requests(), 4);
}

#[test]
fn bytes_and_the_end_pass_both_ways() {
    let server = EchoServer::start();
    let mut client = server.client();
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
fn a_cut_delays_bytes_until_it_is_healed() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("before");
    assert_eq!(server.next_line(), "before");
    server.proxy.cut();
    client.send("held");
    assert!(client.gets_no_response());
    assert!(server.got.try_recv().is_err(), "a cut link let a request through");
    let mut second = server.client();
    second.send("new");
    assert!(second.gets_no_response());
    server.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "held");
    assert_eq!(second.receive(LONG).unwrap(), "new");
}

#[test]
fn one_direction_can_be_cut_alone() {
    let server = EchoServer::start();
    let mut client = server.client();
    server.proxy.cut_one_way(Direction::ToClient);
    client.send("processed");
    assert_eq!(server.next_line(), "processed");
    assert!(client.gets_no_response());
    server.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "processed");
    server.proxy.cut_one_way(Direction::ToServer);
    client.send("not yet");
    assert!(client.gets_no_response());
    assert!(server.got.try_recv().is_err(), "the direction to the server was open");
    server.proxy.heal();
    assert_eq!(client.receive(LONG).unwrap(), "not yet");
}

#[test]
fn a_delay_is_added_each_way_and_not_per_chunk() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("warm");
    server.proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    client.echo("late");
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());

    // Ten lines in a row take the delay once, not ten times.
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
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("warm");
    server.proxy.rate(10_000);
    let start = Instant::now();
    client.echo(&"x".repeat(3_000));
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    server.proxy.heal();
    client.echo(&"x".repeat(1_000_000));
}

#[test]
fn the_nth_response_is_dropped_with_its_connection() {
    let server = EchoServer::start();
    let mut client = server.client();
    let mut other = server.client();
    client.echo("zero");
    server.proxy.drop_response(3);
    client.echo("one");
    other.echo("two");
    client.send("three");
    assert!(client.is_reset());
    // The request was processed, and other connections are not affected.
    for line in ["zero", "one", "two", "three"] {
        assert_eq!(server.next_line(), line);
    }
    other.echo("four");
    server.client().echo("five");
}

#[test]
fn a_reset_ends_open_connections_and_accepts_new_ones() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("one");
    server.proxy.reset();
    assert!(client.is_reset());
    server.client().echo("two");
}

#[test]
fn a_reset_ends_a_link_that_is_cut() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("one");
    server.proxy.cut();
    client.send("held");
    assert!(client.gets_no_response());
    server.proxy.reset();
    assert!(client.is_reset());
}

#[test]
fn a_reset_does_not_wait_for_a_delay() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("one");
    server.proxy.delay(Duration::from_secs(3600));
    client.send("under way");
    assert!(client.gets_no_response());
    server.proxy.reset();
    assert!(client.is_reset());
}

#[test]
fn a_disconnect_behind_a_cut_is_not_seen_until_it_is_healed() {
    for with_reset in [false, true] {
        let server = EchoServer::start();
        let mut client = server.client();
        client.echo("one");
        assert_eq!(server.next_line(), "one");
        if with_reset {
            // A client that closes with unread bytes sends a reset.
            client.send("unread");
            assert_eq!(server.next_line(), "unread");
            client.stream.get_ref().peek(&mut [0]).unwrap();
        }
        server.proxy.cut();
        drop(client);
        let seen = server.got.recv_timeout(Duration::from_millis(200));
        assert!(seen.is_err(), "the server saw through a cut link: {seen:?}");
        server.proxy.heal();
        assert_eq!(server.next_line(), DISCONNECTED);
    }
}

#[test]
fn a_refusing_link_resets_new_connections_until_it_is_healed() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("one");
    server.proxy.refuse();
    assert!(client.is_reset());
    assert!(server.client().is_reset());
    server.proxy.heal();
    server.client().echo("two");
}

#[test]
fn a_dropped_proxy_closes_its_port_and_its_connections() {
    let server = EchoServer::start();
    let mut client = server.client();
    client.echo("one");
    let address = server.proxy.address();
    drop(server.proxy);
    assert!(client.is_reset());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_server_that_is_down_resets_the_client() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::start(port).unwrap();
    let mut client =
        Client { stream: BufReader::new(TcpStream::connect(proxy.address()).unwrap()) };
    assert!(client.is_reset());
}
