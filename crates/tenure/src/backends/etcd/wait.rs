//! Waiting: until_free and until_lost, by watches for the deletion of single keys.
//!
//! A claim in the queue watches only its predecessor, so that a release wakes one waiter. A claim
//! that has no queue entry watches the holder. Both are hints: whatever ends a watch, be it a
//! deletion, a compaction, a refusal or a broken stream, means "read the queue again", and the
//! engine does that every third of the ttl without any hint. So a mistake here delays a waiter, but
//! breaks no lock. What this file prevents is a missed or late wake-up:
//!
//! - Each watch begins at the revision after the read that it continues. The server replays what
//!   happened in between.
//! - Such a replay is slow: the server serves watches that begin in the past only ten times a
//!   second. Where other clients have written since the read, [`until_deleted`] therefore opens a
//!   second watch that begins now, and once that has begun reads the key itself: the key was
//!   deleted before the read, or the watch will tell.
//!
//! All watches of a client share one stream, which the task of [`Watches`] serves. A stream shows
//! its login token only when it is opened, so that it is opened again when the login has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};

use super::Context;
use super::admin::{READ_LIMIT, holder_at};
use super::connection::{Connection, Duplex, Method};
use super::layout::messages::{
    RangeResponse, WatchCancelRequest, WatchCommand, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use super::layout::{self, RANGE};
use crate::backend::Claim;

const WATCH: Method = Method("/etcdserverpb.Watch/Watch");
/// The filter that leaves out puts.
const NO_PUT: i32 = 0;
/// The pause before a stream that ended is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(30);
/// The pause if the server refuses watches with a fresh token too.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Returns when it is worth trying to acquire again.
pub(super) async fn until_free(context: &Context, claim: &Claim) {
    let state = context.claims.find_live(claim);
    let queued = state.and_then(|state| Some((state.predecessor?, state.session)));
    if let Some((predecessor, session)) = queued {
        tokio::select! {
            () = until_deleted(context, predecessor.server_key, predecessor.watch_from) => {}
            () = session.until_ended() => {}
        }
        return;
    }
    // If the lock is free, or its holder cannot be read, an attempt is worth it now.
    let holder = holder_at(&context.connection, &context.space, &claim.key).await;
    if let Ok((Some(holder), read_at)) = holder {
        until_deleted(context, holder.key, read_at + 1).await;
    }
}

/// Returns when a granted claim may be lost.
pub(super) async fn until_lost(context: &Context, claim: &Claim) {
    let Some(state) = context.claims.get(claim).filter(|state| state.granted) else { return };
    tokio::select! {
        () = context.watches.watch(state.server_key, state.seen_at + 1).ended() => {}
        () = state.session.until_ended() => {}
    }
}

/// Returns when the key was deleted at revision `from` or later, or may have been.
async fn until_deleted(context: &Context, key: Vec<u8>, from: i64) {
    let mut watch = context.watches.watch(key.clone(), from);
    // A server whose revision is before `from` has nothing to replay: this watch is prompt.
    if watch.begun().await.is_none_or(|revision| revision < from) {
        return watch.ended().await;
    }
    let mut watch = context.watches.watch(key.clone(), 0);
    watch.begun().await;
    let request = layout::get(&key);
    let read = context.connection.call::<_, RangeResponse>(RANGE, request, READ_LIMIT).await;
    if read.is_ok_and(|found| !found.body.kvs.is_empty()) {
        watch.ended().await;
    }
}

/// Opens watches for deletions.
#[derive(Debug)]
pub(super) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
    last_id: AtomicI64,
}

/// A command to the task that has the stream.
#[derive(Debug)]
enum Command {
    Create(WatchCreateRequest, WatchSenders),
    Cancel(i64),
}

/// The task's side of a watch. The receivers may be gone at any time.
#[derive(Debug)]
struct WatchSenders {
    begun: Option<oneshot::Sender<i64>>,
    ended: oneshot::Sender<()>,
}

/// A watch for the deletion of one key. Dropped, it is cancelled.
struct Watch<'a> {
    begun: oneshot::Receiver<i64>,
    ended: oneshot::Receiver<()>,
    _cancel: CancelOnDrop<'a>,
}

type WatchStream = Duplex<WatchRequest, WatchResponse>;
type OpenWatches = HashMap<i64, WatchSenders>;

impl Watches {
    /// Also returns the task that does the work, until the `Watches` are dropped.
    pub(super) fn new(connection: Arc<Connection>) -> (Watches, impl Future<Output = ()> + Send) {
        let (commands, received) = mpsc::unbounded_channel();
        (Watches { commands, last_id: AtomicI64::new(0) }, run(connection, received))
    }

    /// Watches for a deletion at revision `from` or later; 0 is from now on.
    fn watch(&self, key: Vec<u8>, from: i64) -> Watch<'_> {
        let watch_id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let request =
            WatchCreateRequest { key, start_revision: from, filters: vec![NO_PUT], watch_id };
        let (begun_sender, begun) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let senders = WatchSenders { begun: Some(begun_sender), ended: ended_sender };
        // Without the task both receivers fail at once, which ends the watch.
        let _no_task = self.commands.send(Command::Create(request, senders));
        Watch { begun, ended, _cancel: CancelOnDrop { watches: self, watch_id } }
    }
}

impl Watch<'_> {
    /// Returns when the server has begun to watch, with its revision then. `None` if it will not.
    async fn begun(&mut self) -> Option<i64> {
        (&mut self.begun).await.ok()
    }

    /// Returns when the key was deleted, or may have been.
    async fn ended(self) {
        // An error is a watch that ended without a deletion, which counts the same.
        let _ended = self.ended.await;
    }
}

struct CancelOnDrop<'a> {
    watches: &'a Watches,
    watch_id: i64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        // Without the task there are no watches either.
        let _no_task = self.watches.commands.send(Command::Cancel(self.watch_id));
    }
}

async fn run(connection: Arc<Connection>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let mut open = OpenWatches::new();
    while let Some(command) = commands.recv().await {
        let Command::Create(request, senders) = command else { continue };
        let mut pause = REOPEN_PAUSE;
        if let Ok(mut stream) = connection.open(WATCH).await {
            open.insert(request.watch_id, senders);
            if stream.requests.send(&create(request)).is_ok() {
                pause = serve(&connection, stream, &mut commands, &mut open).await;
            }
        }
        // The watches end only after the pause, because each end makes its claim read the queue:
        // this bounds the number of reads while the server refuses streams.
        tokio::time::sleep(pause).await;
        open.clear();
    }
}

/// Serves a stream until it ends, or belongs to an older connection or login. Returns the pause
/// before the next stream.
async fn serve(
    connection: &Connection,
    mut stream: WatchStream,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    open: &mut OpenWatches,
) -> Duration {
    let mut generations = connection.generations();
    let mut any_begun = false;
    while *generations.borrow_and_update() == stream.generation {
        tokio::select! {
            command = commands.recv() => {
                let Some(command) = command else { return REOPEN_PAUSE };
                let Some(request) = request_for(command, open) else { continue };
                if stream.requests.send(&request).is_err() {
                    return REOPEN_PAUSE;
                }
            }
            response = stream.responses.next() => match response {
                // Refused, and without the id of the watch: the token that the stream was opened
                // with has run out. Every later watch would be refused like this one.
                Some(Ok(response)) if response.created && response.canceled => {
                    connection.forget_token(stream.generation);
                    return if any_begun { REOPEN_PAUSE } else { REFUSED_PAUSE };
                }
                Some(Ok(response)) => {
                    any_begun |= response.created;
                    if let Some(watch_id) = notify(&response, open) {
                        // If the stream has ended, so have its watches.
                        let _stream_ended = stream.requests.send(&cancel(watch_id));
                    }
                }
                Some(Err(status)) => {
                    connection.stream_ended(stream.generation, Some(&status));
                    return REOPEN_PAUSE;
                }
                None => {
                    connection.stream_ended(stream.generation, None);
                    return REOPEN_PAUSE;
                }
            },
            _changed = generations.changed() => {}
        }
    }
    REOPEN_PAUSE
}

/// The request that a command needs. A watch that has ended needs no cancelling.
fn request_for(command: Command, open: &mut OpenWatches) -> Option<WatchRequest> {
    match command {
        Command::Create(request, senders) => {
            open.insert(request.watch_id, senders);
            Some(create(request))
        }
        Command::Cancel(watch_id) => open.remove(&watch_id).map(|_| cancel(watch_id)),
    }
}

/// Notifies the waiter of this watch. Returns the watch if it has ended and the server still has
/// it.
fn notify(response: &WatchResponse, open: &mut OpenWatches) -> Option<i64> {
    if response.created
        && let Some(begun) = open.get_mut(&response.watch_id)?.begun.take()
    {
        let _dropped = begun.send(response.header.as_ref().map_or(0, |header| header.revision));
    }
    if response.events.is_empty() && !response.canceled {
        return None;
    }
    let _dropped = open.remove(&response.watch_id)?.ended.send(());
    (!response.canceled).then_some(response.watch_id)
}

fn create(request: WatchCreateRequest) -> WatchRequest {
    WatchRequest { command: Some(WatchCommand::Create(request)) }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { command: Some(WatchCommand::Cancel(WatchCancelRequest { watch_id })) }
}
