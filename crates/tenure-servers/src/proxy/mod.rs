//! A TCP proxy: a network link to a server that can be slowed, cut and reset.
//!
//! Bytes are never removed from the middle of a stream, because no network does that to TCP. A cut
//! link delays them, as lost packets would, and they arrive after it is healed; a dropped response
//! also resets its connection.

mod connection;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::error::{Error, Result};
use crate::ports::Port;
use crate::secret::{self, Secret};
use crate::wait::wait_until;
use connection::ProxiedConnection;

/// Longer than any test: only a change of the faults ends such a wait.
const UNTIL_CHANGED: Duration = Duration::from_secs(3600);

/// A network link to one port on loopback. Dropping it resets its connections and closes its port.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    state: Arc<ProxyState>,
    accepting: Option<JoinHandle<()>>,
    /// The password of the server.
    secret: Option<Secret>,
}

/// A direction of the traffic through a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Responses.
    ToClient,
    /// Requests.
    ToServer,
}

impl Proxy {
    /// Starts a proxy in front of this port on loopback. The server need not listen yet.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start(target: u16) -> Result<Self> {
        Self::launch(target, None)
    }

    /// Starts a proxy that connects to the server from these source ports, so that a packet filter
    /// can drop the packets of this link alone.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start_from(target: u16, source: Range<u16>) -> Result<Self> {
        Self::launch(target, Some(source))
    }

    fn launch(target: u16, source: Option<Range<u16>>) -> Result<Self> {
        let port = Port::reserve()?;
        let failed = |error: io::Error| Error::failed("start a proxy", error);
        // If another thread forks right now, its child has a copy of the socket with which this
        // port was probed, until it executes its program.
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, port.number()));
        let listener = wait_until(Duration::from_secs(5), bind).map_err(failed)?;
        let state = Arc::new(ProxyState::default());
        let accepting = thread::Builder::new()
            .name("proxy".into())
            .spawn({
                let state = state.clone();
                let route = Route { source, target };
                move || accept(&listener, &route, &state)
            })
            .map_err(failed)?;
        // A client of this port needs the password of the server behind it.
        let secret = secret::of(target);
        if let Some(secret) = &secret {
            secret::remember(port.number(), secret);
        }
        Ok(Self { port, state, accepting: Some(accepting), secret })
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `host:port` that clients connect to.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Delays all bytes until the link is healed. New connections are accepted, but there is no
    /// response.
    pub fn cut(&self) {
        self.change(|faults| faults.cut = [true; 2]);
    }

    /// Delays all bytes in one direction until the link is healed.
    pub fn cut_one_way(&self, direction: Direction) {
        self.change(|faults| faults.cut[direction as usize] = true);
    }

    /// Ends every fault. Delayed bytes arrive.
    pub fn heal(&self) {
        self.change(|faults| *faults = Faults::default());
    }

    /// Delays every byte by this much, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.change(|faults| faults.delay = delay);
    }

    /// Limits the bytes per second, per connection and direction.
    pub fn rate(&self, bytes_per_second: u32) {
        self.change(|faults| faults.rate = Some(bytes_per_second.max(1)));
    }

    /// Drops the n-th response from now on, 1 being the next, and resets its connection: the server
    /// has processed the request, and the client does not know it. A response is what the server
    /// sends after the client has sent something; responses of all connections are counted
    /// together.
    pub fn drop_response(&self, n: u32) {
        self.change(|faults| faults.drop_response = n);
    }

    /// The number of requests so far. What a client sends without waiting for a response counts as
    /// one request.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Resets every connection. New ones are accepted.
    pub fn reset(&self) {
        self.state.reset();
    }

    /// Resets every connection, and new ones at once, until the link is healed.
    pub fn refuse(&self) {
        self.change(|faults| faults.refuse = true);
        self.state.reset();
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.faults());
        self.state.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closing.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. If that fails, the thread has ended by itself.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())));
        if let Some(thread) = self.accepting.take() {
            drop(thread.join());
        }
        self.state.reset();
        if let Some(secret) = &self.secret {
            secret::forget(self.port(), secret);
        }
    }
}

/// The state that the proxy shares with its connections.
#[derive(Debug, Default)]
struct ProxyState {
    faults: Mutex<Faults>,
    /// Notified when `faults` changes or a connection is reset.
    changed: Condvar,
    connections: Mutex<Vec<Weak<ProxiedConnection>>>,
    closing: AtomicBool,
    requests: AtomicU64,
}

/// From these source ports, or from any, to the server's port.
#[derive(Clone)]
struct Route {
    source: Option<Range<u16>>,
    target: u16,
}

/// The injected faults.
#[derive(Debug, Default)]
struct Faults {
    /// Whether traffic is cut, by [`Direction`].
    cut: [bool; 2],
    delay: Duration,
    rate: Option<u32>,
    /// The response to drop: 1 for the next, 0 for none.
    drop_response: u32,
    /// Whether new connections are reset.
    refuse: bool,
}

impl ProxyState {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Waits until bytes that were received at this time may be forwarded in this direction, or the
    /// connection is reset. Returns the rate to send them with.
    fn wait_due(
        &self,
        direction: Direction,
        received: Instant,
        connection: &ProxiedConnection,
    ) -> Option<u32> {
        let mut faults = self.faults();
        while !connection.is_reset() {
            let left = (received + faults.delay).saturating_duration_since(Instant::now());
            let limit = if faults.cut[direction as usize] {
                UNTIL_CHANGED
            } else if left.is_zero() {
                break;
            } else {
                left
            };
            let woken = self.changed.wait_timeout(faults, limit);
            faults = woken.unwrap_or_else(|poison| poison.into_inner()).0;
        }
        faults.rate
    }

    /// Counts a response. Returns whether it is the one to drop.
    fn drops_response(&self) -> bool {
        let mut faults = self.faults();
        let drops = faults.drop_response == 1;
        faults.drop_response = faults.drop_response.saturating_sub(1);
        drops
    }

    fn reset(&self) {
        let mut all = self.connections.lock().unwrap_or_else(|poison| poison.into_inner());
        let open: Vec<_> = all.drain(..).filter_map(|connection| connection.upgrade()).collect();
        drop(all);
        open.iter().for_each(|connection| self.reset_one(connection));
    }

    /// Resets a connection and wakes those of its threads that wait in `wait_due`.
    fn reset_one(&self, connection: &ProxiedConnection) {
        connection.reset();
        // Taking the lock makes sure that no thread is between its check and its wait, where it
        // would miss the notification.
        drop(self.faults());
        self.changed.notify_all();
    }

    fn add(&self, connection: &Arc<ProxiedConnection>) {
        let mut all = self.connections.lock().unwrap_or_else(|poison| poison.into_inner());
        all.retain(|connection| connection.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }
}

fn accept(listener: &TcpListener, route: &Route, state: &Arc<ProxyState>) {
    for client in listener.incoming() {
        if state.closing.load(Ordering::SeqCst) {
            return;
        }
        // The client has closed its connection before it was accepted.
        let Ok(client) = client else { continue };
        if state.faults().refuse {
            connection::reset(client);
            continue;
        }
        let state = state.clone();
        let route = route.clone();
        let open = move || match connect_to_server(&route, &state) {
            Ok(server) => connection::run(client, server, &state),
            // The server is down: the client sees what it would see without the proxy, a moment
            // later.
            Err(_) => connection::reset(client),
        };
        // Without a thread the connection is dropped, which the client sees.
        drop(thread::Builder::new().name("proxy connection".into()).spawn(open));
    }
}

/// Connects to the server.
fn connect_to_server(route: &Route, state: &ProxyState) -> io::Result<TcpStream> {
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, route.target);
    let Some(source) = &route.source else { return TcpStream::connect(server) };
    for port in source.clone().cycle() {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        let bound = bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        match bound.and_then(|()| connect(&socket, &server)) {
            Ok(()) => return Ok(socket.into()),
            _ if state.closing.load(Ordering::SeqCst) => break,
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            // On the same machine, a packet filter that drops everything is reported at once. TCP
            // would send a lost packet again, and so does this loop.
            Err(Errno::INVAL | Errno::NETUNREACH) => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}
