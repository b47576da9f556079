//! Writes requests and reads responses, on whichever thread drives the connection.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use redis::{PushInfo, PushKind, Value, ValueCodec};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio_util::codec::Decoder;

use super::batch;
use super::{OnEvent, Outbox, Request, Response, ResponseSlot, WireEvent};
use crate::backends::redis::connection::utf8;
use crate::backends::redis::layout::scripts::BatchScript;
use crate::support::driver::Drive;
use crate::support::tls::Stream;

/// How much is read at once.
const READ_SIZE: usize = 16 * 1024;

/// Writes and reads.
pub(super) struct RespDriver {
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
    /// What was sent and has no response, in this order.
    waiting: VecDeque<Waiting>,
    /// How many requests that is.
    unanswered: usize,
    /// What was read and is not handed out yet. Empty, but for a moment.
    responses: Vec<(Waiting, Value)>,
    batch: Option<Batching>,
}

/// Who waits for a response.
enum Waiting {
    One(ResponseSlot),
    /// The callers of a batch, in the order of its responses.
    Batch(Vec<oneshot::Sender<Response>>),
}

/// How requests are put together.
struct Batching {
    script: Arc<BatchScript>,
    /// Whether the server was sent its text on this connection, so that its hash will do.
    is_known: bool,
    /// Requests that follow each other and may share a script. Empty, but for a moment.
    run: Vec<Request>,
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
    /// With a script for batches, if the server may run one: all keys of a script have to be in the
    /// same slot of a cluster.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        outbox: Arc<Outbox>,
        on_event: OnEvent,
        batch: Option<Arc<BatchScript>>,
    ) -> RespDriver {
        let batching = |script| Batching { script, is_known: false, run: Vec::new() };
        RespDriver {
            stream,
            outbox,
            on_event,
            collected: Vec::new(),
            output: BytesMut::new(),
            unflushed: false,
            input: BytesMut::new(),
            scratch: vec![0; READ_SIZE].into(),
            codec: ValueCodec::default(),
            waiting: VecDeque::new(),
            unanswered: 0,
            responses: Vec::new(),
            batch: batch.map(batching),
        }
    }

    /// Writes and reads for as long as there is something to do. Ready when the connection ends.
    fn poll_until_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            self.collect_requests();
            let written = self.write(context);
            // After the write: the server works on what was queued while callers are woken.
            self.deliver_responses();
            if let Err(error) = written {
                return Poll::Ready(error);
            }
            match self.read(context) {
                Poll::Ready(Err(error)) => {
                    self.deliver_responses();
                    return Poll::Ready(error);
                }
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
        let mut collected = std::mem::take(&mut self.collected);
        self.unanswered += collected.len();
        if collected.len() >= batch::CLAIMS_MIN && self.batch.is_some() {
            self.put_in_batches(&mut collected);
        } else {
            collected.drain(..).for_each(|request| self.put(request));
        }
        self.collected = collected;
        self.outbox.commands.store(self.waiting.len(), Ordering::SeqCst);
        self.outbox.unanswered.store(self.unanswered, Ordering::SeqCst);
    }

    /// Adds a request to what is to be written.
    fn put(&mut self, request: Request) {
        self.output.extend_from_slice(&request.bytes);
        self.waiting.push_back(Waiting::One(request.slot));
    }

    /// Adds requests in their order; those that follow each other and may share a script do so.
    fn put_in_batches(&mut self, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            match &mut self.batch {
                Some(batch) if request.part.is_some() => batch.run.push(request),
                _ => {
                    self.put_run();
                    self.put(request);
                }
            }
        }
        self.put_run();
    }

    /// Adds the requests that may share a script.
    fn put_run(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        let mut run = std::mem::take(&mut batch.run);
        let size = batch::size(run.len());
        while run.len() >= batch::CLAIMS_MIN
            && let Some(batch) = &mut self.batch
            && batch::write(
                &run[..size.min(run.len())],
                &batch.script,
                !batch.is_known,
                &mut self.output,
            )
        {
            batch.is_known = true;
            let callers = run.drain(..size.min(run.len()));
            let callers = callers.map(|request| request.slot.reply).collect();
            self.waiting.push_back(Waiting::Batch(callers));
        }
        run.drain(..).for_each(|request| self.put(request));
        if let Some(batch) = &mut self.batch {
            // It keeps its memory.
            batch.run = run;
        }
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

    /// Reads once, and matches what is whole with its requests. Ready if there was something.
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
                Ok(Some(value)) => self.match_request(value)?,
                Ok(None) => break,
                Err(error) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Finds the request that a value is the response to. A pushed message goes to its observer.
    fn match_request(&mut self, value: Value) -> io::Result<()> {
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
        let Some(waiting) = self.waiting.pop_front() else {
            return Err(io::Error::other("a response to no request"));
        };
        if let Waiting::Batch(callers) = &waiting {
            self.check_batch(callers.len(), &value)?;
        }
        self.unanswered -= waiting.requests();
        self.outbox.commands.store(self.waiting.len(), Ordering::SeqCst);
        // Before a caller can send its next request, which may be the only one then.
        self.outbox.unanswered.store(self.unanswered, Ordering::SeqCst);
        self.responses.push((waiting, value));
        Ok(())
    }

    /// Looks at the response to a batch.
    fn check_batch(&mut self, requests: usize, value: &Value) -> io::Result<()> {
        match value {
            Value::Array(responses) if responses.len() == requests => Ok(()),
            Value::ServerError(_) => {
                // The server may have forgotten the script. Then each caller sends its own, and the
                // next batch is sent with its text.
                self.batch.iter_mut().for_each(|batch| batch.is_known = false);
                Ok(())
            }
            // Which claim has which outcome is not known: the connection ends, which says so.
            _ => Err(io::Error::other("not as many responses as requests in a batch")),
        }
    }

    /// Hands out the responses that were read. Callers may be gone.
    fn deliver_responses(&mut self) {
        for (waiting, value) in self.responses.drain(..) {
            match (waiting, value) {
                (Waiting::One(slot), value) => drop(slot.reply.send(Ok(value))),
                (Waiting::Batch(callers), Value::Array(responses)) => {
                    for (caller, response) in callers.into_iter().zip(responses) {
                        drop(caller.send(Ok(response)));
                    }
                }
                // The server refused the script, which is the response to all of them.
                (Waiting::Batch(callers), refusal) => {
                    for caller in callers {
                        drop(caller.send(Ok(refusal.clone())));
                    }
                }
            }
        }
    }

    /// Whether a pushed message is the response to the oldest request.
    fn is_confirmation(&self, kind: &PushKind, data: &[Value]) -> bool {
        let oldest = match self.waiting.front() {
            Some(Waiting::One(slot)) => slot.confirmation.as_ref(),
            Some(Waiting::Batch(_)) | None => None,
        };
        oldest.is_some_and(|confirmation| {
            confirmation.kind == *kind && data.first().and_then(utf8) == Some(&confirmation.channel)
        })
    }
}

impl Waiting {
    /// How many requests a response is for.
    fn requests(&self) -> usize {
        match self {
            Waiting::One(_) => 1,
            Waiting::Batch(callers) => callers.len(),
        }
    }
}

impl Drop for RespDriver {
    fn drop(&mut self) {
        // What was not written is dropped with its callers, and nothing is added any more.
        let unwritten = self.outbox.requests.lock().take();
        drop(unwritten);
    }
}
