//! Keeps the leases alive: one task and one stream for all of them. That the stream ends, or that
//! an answer does not come, is no loss: it is opened anew, to another member if there is one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::session::Sessions;
use super::wire::{Duplex, Method, Wire};
use crate::clock::Clock;

type Stream = Duplex<LeaseKeepAliveRequest, LeaseKeepAliveResponse>;

/// The task. Runs until it is aborted.
pub(super) async fn run(wire: Arc<Wire>, sessions: Arc<Sessions>) {
    loop {
        while sessions.is_idle() {
            sessions.bell.notified().await;
        }
        if let Ok(stream) = wire.open(KEEP_ALIVE).await {
            serve(&wire, &sessions, stream).await;
        }
        sessions.forget_asked();
        tokio::time::sleep(AGAIN).await;
    }
}

/// Works until the stream is of no use any more.
async fn serve(wire: &Wire, sessions: &Sessions, mut stream: Stream) {
    let mut generations = wire.generations();
    while *generations.borrow_and_update() == stream.generation && !sessions.is_idle() {
        let work = sessions.work(Clock::Boot.now());
        if work.overdue {
            return wire.move_on(stream.generation);
        }
        for id in work.ask {
            if stream.out.send(LeaseKeepAliveRequest { id }).is_err() {
                return;
            }
        }
        tokio::select! {
            message = stream.messages.next() => match message {
                Some(Ok(answer)) => sessions.hear(&answer),
                Some(Err(status)) => return wire.stream_ended(stream.generation, Some(&status)),
                None => return wire.stream_ended(stream.generation, None),
            },
            () = sessions.bell.notified() => {}
            _new = generations.changed() => {}
            () = Clock::Boot.sleep_until(work.next) => {}
        }
    }
}

const KEEP_ALIVE: Method = Method("/etcdserverpb.Lease/LeaseKeepAlive");
/// The pause before a stream that ended is opened again.
const AGAIN: Duration = Duration::from_millis(30);
