//! The task that watches keys: all watches of a client share one stream.
//!
//! A stream shows its login token only when it is opened, so that it is opened again when the login
//! has changed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};

use super::super::connection::{Connection, Duplex, Method};
use super::super::layout::KeyRange;
use super::super::layout::messages::{
    WatchCancelRequest, WatchCommand, WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::departures::Feed;

const WATCH: Method = Method("/etcdserverpb.Watch/Watch");
/// The filter that leaves out puts.
const NO_PUT: i32 = 0;
/// The pause before a stream that ended is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(30);
/// The pause if the server refuses watches with a fresh token too.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Opens watches.
#[derive(Debug)]
pub(in super::super) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
    last_id: AtomicI64,
}

/// A command to the task that has the stream.
#[derive(Debug)]
enum Command {
    Create(WatchCreateRequest, Sink),
    Cancel(i64),
}

/// The task's side of a watch.
#[derive(Debug)]
enum Sink {
    /// Ends with the first event.
    Once(WatchSenders),
    /// Gets all deletions, for as long as it is there.
    All(FeedSink),
}

/// Dropped, it ends the feed: whatever became of the watch, its waiters read the queue again.
#[derive(Debug)]
struct FeedSink(Weak<Feed>);

impl Drop for FeedSink {
    fn drop(&mut self) {
        self.0.upgrade().inspect(|feed| feed.end());
    }
}

/// The receivers may be gone at any time. Dropped, they end the watch.
#[derive(Debug)]
struct WatchSenders {
    begun: Option<oneshot::Sender<i64>>,
    _ended: oneshot::Sender<()>,
}

/// A watch that ends with its first event. Dropped, it is cancelled.
pub(super) struct Watch<'a> {
    begun: oneshot::Receiver<i64>,
    ended: oneshot::Receiver<()>,
    _cancel: CancelOnDrop<'a>,
}

type WatchStream = Duplex<WatchRequest, WatchResponse>;
type OpenWatches = HashMap<i64, Sink>;

impl Watches {
    /// Also returns the task that does the work, until the `Watches` are dropped.
    pub(in super::super) fn new(
        connection: Arc<Connection>,
    ) -> (Watches, impl Future<Output = ()> + Send) {
        let (commands, received) = mpsc::unbounded_channel();
        (Watches { commands, last_id: AtomicI64::new(0) }, run(connection, received))
    }

    /// Watches for a deletion at revision `from` or later, with `or_put` also for a put; 0 is from
    /// now on.
    pub(super) fn watch(&self, keys: KeyRange, from: i64, or_put: bool) -> Watch<'_> {
        let watch_id = self.next_id();
        let filters = if or_put { Vec::new() } else { vec![NO_PUT] };
        let KeyRange { from: key, end: range_end } = keys;
        let request =
            WatchCreateRequest { key, range_end, start_revision: from, filters, watch_id };
        let (begun_sender, begun) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let senders = WatchSenders { begun: Some(begun_sender), _ended: ended_sender };
        // Without the task both receivers fail at once, which ends the watch.
        let _no_task = self.commands.send(Command::Create(request, Sink::Once(senders)));
        Watch { begun, ended, _cancel: CancelOnDrop { commands: &self.commands, watch_id } }
    }

    /// Watches for all deletions from now on. The feed is told when that begins and when it ends.
    pub(super) fn feed(&self, keys: KeyRange) -> Arc<Feed> {
        let watch_id = self.next_id();
        let KeyRange { from: key, end: range_end } = keys;
        let filters = vec![NO_PUT];
        let request = WatchCreateRequest { key, range_end, start_revision: 0, filters, watch_id };
        let feed = Arc::new(Feed::new(FeedCancel { commands: self.commands.clone(), watch_id }));
        let sink = Sink::All(FeedSink(Arc::downgrade(&feed)));
        // Without the task the sink is dropped at once, which ends the feed.
        let _no_task = self.commands.send(Command::Create(request, sink));
        feed
    }

    fn next_id(&self) -> i64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Watch<'_> {
    /// Returns when the server has begun to watch, with its revision then. `None` if it will not.
    pub(super) async fn begun(&mut self) -> Option<i64> {
        (&mut self.begun).await.ok()
    }

    /// Returns with the first event, or when there may have been one.
    pub(super) async fn ended(self) {
        // An error is a watch that ended without an event, which counts the same.
        let _ended = self.ended.await;
    }
}

struct CancelOnDrop<'a> {
    commands: &'a mpsc::UnboundedSender<Command>,
    watch_id: i64,
}

/// Cancels the watch of a feed.
#[derive(Debug)]
pub(super) struct FeedCancel {
    commands: mpsc::UnboundedSender<Command>,
    watch_id: i64,
}

impl Drop for FeedCancel {
    fn drop(&mut self) {
        drop(CancelOnDrop { commands: &self.commands, watch_id: self.watch_id });
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        // Without the task there are no watches either.
        let _no_task = self.commands.send(Command::Cancel(self.watch_id));
    }
}

async fn run(connection: Arc<Connection>, mut commands: mpsc::UnboundedReceiver<Command>) {
    let mut open = OpenWatches::new();
    while let Some(command) = commands.recv().await {
        let Command::Create(request, sink) = command else { continue };
        let mut pause = REOPEN_PAUSE;
        if let Ok(mut stream) = connection.open(WATCH).await {
            open.insert(request.watch_id, sink);
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
        Command::Create(request, sink) => {
            open.insert(request.watch_id, sink);
            Some(create(request))
        }
        Command::Cancel(watch_id) => open.remove(&watch_id).map(|_| cancel(watch_id)),
    }
}

/// Notifies the waiters of this watch. Returns the watch if it has ended and the server still has
/// it.
fn notify(response: &WatchResponse, open: &mut OpenWatches) -> Option<i64> {
    let sink = open.get_mut(&response.watch_id)?;
    if response.created {
        sink.begin(response.header.as_ref().map_or(0, |header| header.revision));
    }
    if response.events.is_empty() && !response.canceled {
        return None;
    }
    if let Sink::All(feed) = sink
        && !response.canceled
    {
        // A feed that is gone has sent its cancellation.
        if let Some(feed) = feed.0.upgrade() {
            feed.deleted(response.events.iter().filter_map(|event| event.kv.as_ref()));
        }
        return None;
    }
    drop(open.remove(&response.watch_id));
    (!response.canceled).then_some(response.watch_id)
}

impl Sink {
    /// The server watches from this revision on.
    fn begin(&mut self, revision: i64) {
        match self {
            Sink::Once(senders) => {
                if let Some(begun) = senders.begun.take() {
                    let _dropped = begun.send(revision);
                }
            }
            Sink::All(feed) => {
                feed.0.upgrade().inspect(|feed| feed.begin(revision));
            }
        }
    }
}

fn create(request: WatchCreateRequest) -> WatchRequest {
    WatchRequest { command: Some(WatchCommand::Create(request)) }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { command: Some(WatchCommand::Cancel(WatchCancelRequest { watch_id })) }
}
