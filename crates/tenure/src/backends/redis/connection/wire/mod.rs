//! The bytes of one connection: requests out, responses and pushed messages in.
//!
//! The thread that sends a request writes it to the socket itself; the task in the background reads
//! (see `support::driver`). Redis responds in the order of the requests, so that a queue of those
//! who wait is all there is to match them.
//!
//! **Few writes, many requests.** While [`WRITES_MAX`] requests or more have no response yet, a new
//! one is only queued. Whichever thread reads the next response writes all of them at once; or the
//! sender does, when there are enough for a batch and the server has only one command to work on.
//!
//! **Why none is forgotten.** The sender puts its request into the queue, and *then* reads how many
//! have no response. The driver lowers that number, and *then* looks into the queue. So either the
//! sender sees the lower number and drives the connection itself, or the driver sees the request.
//!
//! **Subscriptions** are confirmed by a pushed message instead of a response. The same kind of
//! message comes unasked when a cluster moves a slot: only one that names what the oldest request
//! is about is its response.
//!
//! - `resp_driver`: writes and reads
//! - `batch`: many requests in one script

pub(crate) mod batch;
mod resp_driver;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread::ThreadId;
use std::time::Instant;

use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use self::batch::BatchPart;
use self::resp_driver::RespDriver;
use crate::backends::redis::layout::scripts::BatchScript;
use crate::support::driver::SharedDriver;
use crate::support::short_wait::{self, ShortWait};
use crate::support::socket::SocketHandle;
use crate::support::sync::Mutex;
use crate::support::tls::Stream;

/// With so many requests under way, further ones are written together.
const WRITES_MAX: usize = 4;
/// With so many commands under way, also a batch waits for a response: the server has one to work
/// on, and one to go on with.
const COMMANDS_MAX: usize = 2;

/// The response to a request, or why there is none. A server's error is a value.
pub(crate) type Response = Result<Value, RedisError>;

/// Called with what happens on a connection besides responses.
pub(super) type OnEvent = Box<dyn Fn(WireEvent) + Send>;

/// What happens on a connection besides responses.
#[derive(Debug)]
pub(super) enum WireEvent {
    Pushed(PushInfo),
    /// It broke.
    Broken,
}

/// A connection.
pub(super) struct Wire {
    outbox: Arc<Outbox>,
    driver: Arc<SharedDriver<RespDriver>>,
    background: AbortHandle,
    /// The thread that the background runs on.
    thread: ThreadId,
    socket: Arc<SocketHandle>,
    short_wait: ShortWait,
}

/// A request, and where its response goes.
struct Request {
    bytes: Vec<u8>,
    /// Which script it is, if it may share one with others.
    part: Option<BatchPart>,
    slot: ResponseSlot,
}

impl Request {
    fn new(bytes: Vec<u8>, part: Option<BatchPart>, reply: oneshot::Sender<Response>) -> Request {
        Request { bytes, part, slot: ResponseSlot { reply, confirmation: None } }
    }
}

/// Where the response to a request goes.
struct ResponseSlot {
    reply: oneshot::Sender<Response>,
    /// What the response is, if it is a pushed message.
    confirmation: Option<Confirmation>,
}

/// The pushed message that confirms a request about a subscription.
struct Confirmation {
    kind: PushKind,
    channel: String,
}

/// The requests that were not written yet.
#[derive(Default)]
struct Outbox {
    /// `None` when the connection has ended.
    requests: Mutex<Option<Vec<Request>>>,
    /// How many requests were written and have no response.
    unanswered: AtomicUsize,
    /// In how many commands. A batch is one.
    commands: AtomicUsize,
}

impl Wire {
    /// Starts to drive a connection. Must be called within a runtime.
    pub(super) fn start(
        stream: Box<dyn Stream>,
        socket: Arc<SocketHandle>,
        on_event: OnEvent,
        batch: Option<Arc<BatchScript>>,
    ) -> Wire {
        let outbox = Arc::new(Outbox {
            requests: Mutex::new(Some(Vec::new())),
            unanswered: AtomicUsize::new(0),
            commands: AtomicUsize::new(0),
        });
        let driver = RespDriver::new(stream, outbox.clone(), on_event, batch);
        let driver = Arc::new(SharedDriver::new(driver));
        let background = tokio::spawn(driver.clone().run()).abort_handle();
        let thread = std::thread::current().id();
        Wire { outbox, driver, background, thread, socket, short_wait: ShortWait::default() }
    }

    /// Sends a request and awaits its response.
    pub(super) async fn request(&self, bytes: Vec<u8>) -> Response {
        self.send(bytes, None).await.unwrap_or_else(|_| Err(broken().into()))
    }

    /// Sends a request that keeps the server busy for some microseconds only, and awaits its
    /// response; if it is alone, at first on this thread. If many are queued, it may share a script
    /// with others.
    pub(super) async fn request_short(&self, bytes: Vec<u8>, part: Option<BatchPart>) -> Response {
        let is_alone = self.outbox.unanswered.load(Ordering::SeqCst) == 0;
        if !is_alone {
            self.short_wait.on_company();
        }
        if !is_alone || std::thread::current().id() == self.thread {
            let reply = self.send(bytes, part);
            return reply.await.unwrap_or_else(|_| Err(broken().into()));
        }
        if self.short_wait.is_allowed() {
            let mut reply = self.send_and_wait(bytes);
            if let Ok(response) = reply.try_recv() {
                return response;
            }
            return reply.await.unwrap_or_else(|_| Err(broken().into()));
        }
        let sent = Instant::now();
        let reply = self.send(bytes, part);
        let response = reply.await.unwrap_or_else(|_| Err(broken().into()));
        self.short_wait.on_response(sent.elapsed());
        response
    }

    /// Sends a request, and waits for the response on this thread for a moment. Meanwhile the
    /// background is not woken by what arrives.
    fn send_and_wait(&self, bytes: Vec<u8>) -> oneshot::Receiver<Response> {
        let held_back = self.socket.hold_back();
        let reply = self.send(bytes, None);
        let readable = held_back.wait_readable(short_wait::LIMIT);
        if readable {
            self.driver.drive();
        }
        self.short_wait.on_wait(!readable);
        reply
    }

    /// Sends a request that is confirmed by a pushed message of this kind about this channel.
    pub(super) async fn request_confirmed(
        &self,
        bytes: Vec<u8>,
        kind: PushKind,
        channel: &str,
    ) -> Response {
        let confirmation = Confirmation { kind, channel: channel.to_owned() };
        let (reply, receiver) = oneshot::channel();
        let mut request = Request::new(bytes, None, reply);
        request.slot.confirmation = Some(confirmation);
        let queued = self.queue(request);
        self.drive_if_idle(queued);
        receiver.await.unwrap_or_else(|_| Err(broken().into()))
    }

    /// Sends requests one after another, and awaits all responses.
    pub(super) async fn request_all(
        &self,
        requests: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Vec<Value>, RedisError> {
        let queue = |bytes| {
            let (reply, receiver) = oneshot::channel();
            self.queue(Request::new(bytes, None, reply));
            receiver
        };
        let replies: Vec<_> = requests.into_iter().map(queue).collect();
        self.driver.drive();
        let mut responses = Vec::with_capacity(replies.len());
        for reply in replies {
            responses.push(reply.await.unwrap_or_else(|_| Err(broken().into()))?);
        }
        Ok(responses)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.driver.has_ended()
    }

    fn send(&self, bytes: Vec<u8>, part: Option<BatchPart>) -> oneshot::Receiver<Response> {
        let (reply, receiver) = oneshot::channel();
        let queued = self.queue(Request::new(bytes, part, reply));
        self.drive_if_idle(queued);
        receiver
    }

    /// Drives the connection if the server has little to do, or would have nothing to do after the
    /// batch that it works on.
    fn drive_if_idle(&self, queued: usize) {
        fence(Ordering::SeqCst);
        let few = self.outbox.unanswered.load(Ordering::SeqCst) < WRITES_MAX;
        let is_batch = || {
            queued >= batch::CLAIMS_MIN
                && self.outbox.commands.load(Ordering::SeqCst) < COMMANDS_MAX
        };
        if few || is_batch() {
            self.driver.drive();
        }
    }

    /// Adds a request to those that are to be written. Returns how many there are.
    fn queue(&self, request: Request) -> usize {
        match &mut *self.outbox.requests.lock() {
            Some(requests) => {
                requests.push(request);
                requests.len()
            }
            // After the end, the request is dropped, which the receiver of its response sees.
            None => 0,
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.background.abort();
        self.driver.end();
    }
}

/// The connection ended before the response came.
fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
