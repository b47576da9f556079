//! A TCP proxy: a link to a server that can be slowed, held up, or torn.
//!
//! Bytes are never taken out of the middle of a stream, because no network does that to TCP. A cut
//! link holds them up, as lost packets would, and they arrive after it is healed; a lost answer
//! takes its connection with it.

mod link;

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
use link::Link;

/// A link to one port on loopback. Dropping it resets its connections and closes its port.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
    /// What the server behind it asks for.
    secret: Option<Secret>,
}

/// One of the two ways through a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Answers.
    ToClient,
    /// Requests.
    ToServer,
}

impl Proxy {
    /// A proxy in front of this port on loopback; the server need not listen yet.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start(target: u16) -> Result<Self> {
        Self::launch(target, None)
    }

    /// The same, reaching the server from these ports: whoever may do that to this network can lose
    /// packets of this link alone.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start_from(target: u16, source: Range<u16>) -> Result<Self> {
        Self::launch(target, Some(source))
    }

    fn launch(target: u16, source: Option<Range<u16>>) -> Result<Self> {
        let port = Port::reserve()?;
        let failed = |error: io::Error| Error::failed("start a proxy", error);
        // Another thread that starts a process hands it all sockets until it has become its
        // program, also the one that this port was just probed with.
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, port.number()));
        let listener = wait_until(Duration::from_secs(5), bind).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let accepting = thread::Builder::new()
            .name("proxy".into())
            .spawn({
                let shared = shared.clone();
                move || accept(&listener, &(source, target), &shared)
            })
            .map_err(failed)?;
        // Whoever asks this port asks that server.
        let secret = secret::of(target);
        if let Some(secret) = &secret {
            secret::remember(port.number(), secret);
        }
        Ok(Self { port, shared, accepting: Some(accepting), secret })
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `host:port` that clients connect to.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Lets nothing pass, in silence. New connections are accepted, and nobody answers.
    pub fn cut(&self) {
        self.change(|settings| settings.held = [true; 2]);
    }

    /// Lets nothing pass in one direction, in silence.
    pub fn cut_one_way(&self, direction: Direction) {
        self.change(|settings| settings.held[direction as usize] = true);
    }

    /// Ends every fault, and lets through what was held up.
    pub fn heal(&self) {
        self.change(|settings| *settings = Settings::default());
    }

    /// Lets every byte arrive this much later, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.change(|settings| settings.delay = delay);
    }

    /// Lets at most so many bytes pass in a second, per connection and direction.
    pub fn rate(&self, bytes_per_second: u32) {
        self.change(|settings| settings.rate = Some(bytes_per_second.max(1)));
    }

    /// Swallows the n-th answer from now on, 1 being the next, and resets its connection: the
    /// server has done the work, and the client cannot know. An answer is what the server sends
    /// after the client has sent something; answers of all connections are counted together.
    pub fn swallow_answer(&self, n: u32) {
        self.change(|settings| settings.swallow = n);
    }

    /// How many requests came through: what a client sends after it has heard something, so that
    /// those it sends at once count as one.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Tears every connection with a reset. New ones are welcome.
    pub fn reset(&self) {
        self.shared.reset();
    }

    /// Tears every connection and resets new ones at once, until healed.
    pub fn refuse(&self) {
        self.change(|settings| settings.refusing = true);
        self.shared.reset();
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.settings());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if that fails, it has ended by itself.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())));
        if let Some(thread) = self.accepting.take() {
            drop(thread.join());
        }
        self.shared.reset();
        if let Some(secret) = &self.secret {
            secret::forget(self.port(), secret);
        }
    }
}

/// What the proxy and its connections have in common.
#[derive(Debug, Default)]
struct Shared {
    settings: Mutex<Settings>,
    changed: Condvar,
    links: Mutex<Vec<Weak<Link>>>,
    closing: AtomicBool,
    requests: AtomicU64,
}

#[derive(Debug, Default)]
struct Settings {
    /// By [`Direction`].
    held: [bool; 2],
    delay: Duration,
    rate: Option<u32>,
    /// The answer to swallow: 1 for the next, 0 for none.
    swallow: u32,
    refusing: bool,
}

impl Shared {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Waits until what came then may go on in this direction, or the link is torn. Returns the
    /// rate to send it with.
    fn wait_due(&self, direction: Direction, came: Instant, link: &Link) -> Option<u32> {
        let mut settings = self.settings();
        while !link.is_torn() {
            let left = (came + settings.delay).saturating_duration_since(Instant::now());
            let limit = match settings.held[direction as usize] {
                // Only a change ends this.
                true => Duration::from_secs(3600),
                false if left.is_zero() => break,
                false => left,
            };
            let woken = self.changed.wait_timeout(settings, limit);
            settings = woken.unwrap_or_else(|poison| poison.into_inner()).0;
        }
        settings.rate
    }

    /// Counts an answer; says whether it is the one to swallow.
    fn swallows(&self) -> bool {
        let mut settings = self.settings();
        let hit = settings.swallow == 1;
        settings.swallow = settings.swallow.saturating_sub(1);
        hit
    }

    fn reset(&self) {
        let mut links = self.links.lock().unwrap_or_else(|poison| poison.into_inner());
        let open: Vec<_> = links.drain(..).filter_map(|link| link.upgrade()).collect();
        drop(links);
        open.iter().for_each(|link| self.tear(link));
    }

    /// Tears a link and wakes those of its threads that wait for their time.
    fn tear(&self, link: &Link) {
        link.tear();
        // The lock makes sure that nobody misses the call between looking and waiting.
        drop(self.settings());
        self.changed.notify_all();
    }

    fn add(&self, link: &Arc<Link>) {
        let mut links = self.links.lock().unwrap_or_else(|poison| poison.into_inner());
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }
}

fn accept(listener: &TcpListener, way: &Way, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        // A client that went away while it waited is not our business.
        let Ok(client) = client else { continue };
        if shared.settings().refusing {
            link::reset(client);
            continue;
        }
        let shared = shared.clone();
        let way = way.clone();
        let open = move || match reach(&way, &shared) {
            Ok(server) => link::run(client, server, &shared),
            // The server is down: the client sees what it would see without us, a moment later.
            Err(_) => link::reset(client),
        };
        // Without a thread the connection is dropped, which the client sees.
        drop(thread::Builder::new().name("proxy link".into()).spawn(open));
    }
}

/// A connection to the server.
fn reach((source, target): &Way, shared: &Shared) -> io::Result<TcpStream> {
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, *target);
    let Some(source) = source else { return TcpStream::connect(server) };
    for port in source.clone().cycle() {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        let bound = bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        match bound.and_then(|()| connect(&socket, &server)) {
            Ok(()) => return Ok(socket.into()),
            _ if shared.closing.load(Ordering::SeqCst) => break,
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            // A network that loses everything says so at once, on the same machine. What is lost is
            // sent again.
            Err(Errno::INVAL | Errno::NETUNREACH) => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// From these ports, or from any, to that one.
type Way = (Option<Range<u16>>, u16);
