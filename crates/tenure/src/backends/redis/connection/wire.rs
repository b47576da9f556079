//! The bytes of one connection: requests out, responses and pushed messages in.
//!
//! The thread that sends a request writes it to the socket itself; the task in the background reads
//! (see `support::driver`). Redis responds in the order of the requests, so that a queue of those
//! who wait is all there is to match them.
//!
//! **Few writes, many requests.** While [`WRITES_MAX`] requests or more have no response yet, a new
//! one is only queued. Whichever thread reads the next response writes all of them at once.
//!
//! **Why none is forgotten.** The sender puts its request into the queue, and *then* reads how many
//! have no response. The driver lowers that number, and *then* looks into the queue. So either the
//! sender sees the lower number and drives the connection itself, or the driver sees the request.
//!
//! **Subscriptions** are confirmed by a pushed message instead of a response. The same kind of
//! message comes unasked when a cluster moves a slot: only one that names what the oldest request
//! is about is its response.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::{Context, Poll};
use std::thread::ThreadId;
use std::time::Instant;

use bytes::{Buf, BytesMut};
use redis::{PushInfo, PushKind, RedisError, Value, ValueCodec};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::codec::Decoder;

use crate::support::driver::{Drive, SharedDriver};
use crate::support::short_wait::{self, ShortWait};
use crate::support::socket::SocketHandle;
use crate::support::sync::Mutex;
use crate::support::tls::Stream;

/// With so many requests under way, further ones are written together.
const WRITES_MAX: usize = 4;
/// How much is read at once.
const READ_SIZE: usize = 16 * 1024;

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
    slot: ResponseSlot,
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
}

impl Wire {
    /// Starts to drive a connection. Must be called within a runtime.
    pub(super) fn start(
        stream: Box<dyn Stream>,
        socket: Arc<SocketHandle>,
        on_event: OnEvent,
    ) -> Wire {
        let outbox = Arc::new(Outbox {
            requests: Mutex::new(Some(Vec::new())),
            unanswered: AtomicUsize::new(0),
        });
        let driver = Arc::new(SharedDriver::new(RespDriver {
            stream,
            outbox: outbox.clone(),
            on_event,
            collected: Vec::new(),
            output: BytesMut::new(),
            unflushed: false,
            input: BytesMut::new(),
            scratch: vec![0; READ_SIZE].into(),
            codec: ValueCodec::default(),
            waiting: VecDeque::new(),
        }));
        let background = tokio::spawn(driver.clone().run()).abort_handle();
        let thread = std::thread::current().id();
        Wire { outbox, driver, background, thread, socket, short_wait: ShortWait::default() }
    }

    /// Sends a request and awaits its response.
    pub(super) async fn request(&self, bytes: Vec<u8>) -> Response {
        self.send(bytes, None).await.unwrap_or_else(|_| Err(broken().into()))
    }

    /// Sends a request that keeps the server busy for some microseconds only, and awaits its
    /// response; if it is alone, at first on this thread.
    pub(super) async fn request_short(&self, bytes: Vec<u8>) -> Response {
        let is_alone = self.outbox.unanswered.load(Ordering::SeqCst) == 0;
        if !is_alone {
            self.short_wait.on_company();
        }
        if !is_alone || std::thread::current().id() == self.thread {
            return self.request(bytes).await;
        }
        if self.short_wait.is_allowed() {
            let mut reply = self.send_and_wait(bytes);
            if let Ok(response) = reply.try_recv() {
                return response;
            }
            return reply.await.unwrap_or_else(|_| Err(broken().into()));
        }
        let sent = Instant::now();
        let reply = self.send(bytes, None);
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
        self.send(bytes, Some(confirmation)).await.unwrap_or_else(|_| Err(broken().into()))
    }

    /// Sends requests one after another, and awaits all responses.
    pub(super) async fn request_all(
        &self,
        requests: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Vec<Value>, RedisError> {
        let replies: Vec<_> = requests.into_iter().map(|bytes| self.queue(bytes, None)).collect();
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

    fn send(
        &self,
        bytes: Vec<u8>,
        confirmation: Option<Confirmation>,
    ) -> oneshot::Receiver<Response> {
        let reply = self.queue(bytes, confirmation);
        fence(Ordering::SeqCst);
        if self.outbox.unanswered.load(Ordering::SeqCst) < WRITES_MAX {
            self.driver.drive();
        }
        reply
    }

    fn queue(
        &self,
        bytes: Vec<u8>,
        confirmation: Option<Confirmation>,
    ) -> oneshot::Receiver<Response> {
        let (reply, receiver) = oneshot::channel();
        // After the end, `reply` is dropped, which the receiver sees.
        if let Some(requests) = &mut *self.outbox.requests.lock() {
            requests.push(Request { bytes, slot: ResponseSlot { reply, confirmation } });
        }
        receiver
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.background.abort();
        self.driver.end();
    }
}

/// Writes and reads.
struct RespDriver {
    stream: Box<dyn Stream>,
    outbox: Arc<Outbox>,
    on_event: OnEvent,
    /// Empty, but for a moment: it takes turns with the outbox, so that both keep their memory.
    collected: Vec<Request>,
    /// What was not written yet.
    output: BytesMut,
    /// Whether the stream, if it is encrypted, has something that is not written yet.
    unflushed: bool,
    /// What was read and is not a whole response yet.
    input: BytesMut,
    scratch: Box<[u8]>,
    codec: ValueCodec,
    /// Who waits, in the order of the requests.
    waiting: VecDeque<ResponseSlot>,
}

impl Drive for RespDriver {
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.poll_until_idle(context) {
            Poll::Pending => Poll::Pending,
            // The callers see that their senders are dropped.
            Poll::Ready(_error) => {
                (self.on_event)(WireEvent::Broken);
                Poll::Ready(())
            }
        }
    }
}

impl RespDriver {
    /// Writes and reads for as long as there is something to do. Ready when the connection ends.
    fn poll_until_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            self.collect_requests();
            if let Err(error) = self.write(context) {
                return Poll::Ready(error);
            }
            match self.read(context) {
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Ready(Ok(())) => {}
                Poll::Pending if self.has_requests() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes all requests out of the outbox.
    fn collect_requests(&mut self) {
        match &mut *self.outbox.requests.lock() {
            Some(requests) if !requests.is_empty() => {
                std::mem::swap(requests, &mut self.collected);
            }
            _ => return,
        }
        for request in self.collected.drain(..) {
            self.output.extend_from_slice(&request.bytes);
            self.waiting.push_back(request.slot);
        }
        self.outbox.unanswered.store(self.waiting.len(), Ordering::SeqCst);
    }

    /// Whether there is a request that no other thread will write.
    fn has_requests(&self) -> bool {
        fence(Ordering::SeqCst);
        self.outbox.requests.lock().as_ref().is_some_and(|requests| !requests.is_empty())
    }

    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.output.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, &self.output) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => self.output.advance(written),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
            self.unflushed = true;
        }
        if self.unflushed {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Ready(flushed) => flushed?,
                Poll::Pending => return Ok(()),
            }
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads once, and hands out what is whole. Ready if there was something.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(&mut self.scratch);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Poll::Ready(Ok(())) => self.input.extend_from_slice(buffer.filled()),
        }
        while !self.input.is_empty() {
            match self.codec.decode(&mut self.input) {
                Ok(Some(value)) => self.deliver(value)?,
                Ok(None) => break,
                Err(error) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Hands a value to the request that it is the response to, or to the observer of
    /// pushed messages.
    fn deliver(&mut self, value: Value) -> io::Result<()> {
        let value = match value {
            Value::Push { kind, data } => {
                let confirms = self.is_confirmation(&kind, &data);
                (self.on_event)(WireEvent::Pushed(PushInfo { kind, data }));
                if !confirms {
                    return Ok(());
                }
                Value::Okay
            }
            value => value,
        };
        let Some(slot) = self.waiting.pop_front() else {
            return Err(io::Error::other("a response to no request"));
        };
        // Before the caller can send its next request, which may be the only one then.
        self.outbox.unanswered.store(self.waiting.len(), Ordering::SeqCst);
        // The caller may be gone.
        let _unwanted = slot.reply.send(Ok(value));
        Ok(())
    }

    /// Whether a pushed message is the response to the oldest request.
    fn is_confirmation(&self, kind: &PushKind, data: &[Value]) -> bool {
        let oldest = self.waiting.front().and_then(|slot| slot.confirmation.as_ref());
        oldest.is_some_and(|confirmation| {
            confirmation.kind == *kind
                && data.first().and_then(super::utf8) == Some(&confirmation.channel)
        })
    }
}

impl Drop for RespDriver {
    fn drop(&mut self) {
        // What was not written is dropped with its callers, and nothing is added any more.
        let unwritten = self.outbox.requests.lock().take();
        drop(unwritten);
    }
}

/// The connection ended before the response came.
fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
