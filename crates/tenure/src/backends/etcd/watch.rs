//! Watches for the deletion of single keys: one task and one stream for all of them. Whatever ends
//! a watch, be it a deletion, a compaction or a broken stream, says the same: look again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};

use super::proto::{
    WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, WatchWish,
};
use super::wire::{Duplex, Method, Wire};

/// Where watches are asked for.
#[derive(Debug)]
pub(super) struct Watches {
    wishes: mpsc::UnboundedSender<Wish>,
    last: AtomicI64,
}

#[derive(Debug)]
enum Wish {
    Watch(WatchCreateRequest, Open),
    Forget(i64),
}

/// The task's end of a watch.
#[derive(Debug)]
struct Open {
    /// The server's revision when it began.
    begun: Option<oneshot::Sender<i64>>,
    ended: oneshot::Sender<()>,
}

/// A watch for the deletion of one key.
pub(super) struct Watch<'a> {
    begun: oneshot::Receiver<i64>,
    ended: oneshot::Receiver<()>,
    _forget: Forget<'a>,
}

type Stream = Duplex<WatchRequest, WatchResponse>;

impl Watches {
    /// The place to ask, and the task that does the work until the place is gone.
    pub(super) fn new(wire: Arc<Wire>) -> (Watches, impl Future<Output = ()> + Send) {
        let (wishes, asked) = mpsc::unbounded_channel();
        (Watches { wishes, last: AtomicI64::new(0) }, run(wire, asked))
    }

    /// Watches for a deletion at `from` or later; 0 is from now on.
    pub(super) fn watch(&self, key: Vec<u8>, from: i64) -> Watch<'_> {
        let watch_id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let request =
            WatchCreateRequest { key, start_revision: from, filters: vec![NO_PUT], watch_id };
        let (send_begun, begun) = oneshot::channel();
        let (send_ended, ended) = oneshot::channel();
        let open = Open { begun: Some(send_begun), ended: send_ended };
        // Without the task, both receivers fail at once: look again.
        let _gone = self.wishes.send(Wish::Watch(request, open));
        Watch { begun, ended, _forget: Forget { watches: self, watch_id } }
    }
}

impl Watch<'_> {
    /// Returns when the server has begun to watch, with its revision then. `None` if it will not.
    pub(super) async fn begun(&mut self) -> Option<i64> {
        (&mut self.begun).await.ok()
    }

    /// Returns when the key was deleted, or may have been.
    pub(super) async fn ended(self) {
        // An error is a watch that ended otherwise.
        let _look_again = self.ended.await;
    }
}

/// Ends a watch that nobody waits for any more.
struct Forget<'a> {
    watches: &'a Watches,
    watch_id: i64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        // If the task is gone, so are its watches.
        let _gone = self.watches.wishes.send(Wish::Forget(self.watch_id));
    }
}

async fn run(wire: Arc<Wire>, mut wishes: mpsc::UnboundedReceiver<Wish>) {
    let mut open = HashMap::new();
    while let Some(wish) = wishes.recv().await {
        let Wish::Watch(request, watch) = wish else { continue };
        let mut pause = AGAIN;
        if let Ok(stream) = wire.open(WATCH).await {
            open.insert(request.watch_id, watch);
            if stream.out.send(create(request)).is_ok() {
                pause = serve(&wire, stream, &mut wishes, &mut open).await;
            }
        }
        // Those who watched look for themselves meanwhile; this keeps them from asking too often.
        tokio::time::sleep(pause).await;
        open.clear();
    }
}

/// Works until the stream ends, or the connection or its login is left for another. Returns for how
/// long to wait before the next stream.
async fn serve(
    wire: &Wire,
    mut stream: Stream,
    wishes: &mut mpsc::UnboundedReceiver<Wish>,
    open: &mut HashMap<i64, Open>,
) -> Duration {
    let mut generations = wire.generations();
    let mut any_begun = false;
    while *generations.borrow_and_update() == stream.generation {
        tokio::select! {
            wish = wishes.recv() => {
                let message = match wish {
                    Some(Wish::Watch(request, watch)) => {
                        open.insert(request.watch_id, watch);
                        create(request)
                    }
                    Some(Wish::Forget(watch_id)) => match open.remove(&watch_id) {
                        Some(_unheard) => cancel(watch_id),
                        None => continue,
                    },
                    None => return AGAIN,
                };
                if stream.out.send(message).is_err() {
                    return AGAIN;
                }
            }
            message = stream.messages.next() => match message {
                // Refused, and under no number of ours: the token, which a stream shows once when
                // it is opened, has run out. Every later watch would be refused like this one.
                Some(Ok(answer)) if answer.created && answer.canceled => {
                    wire.forget_token(stream.generation);
                    return if any_begun { AGAIN } else { REFUSED };
                }
                Some(Ok(answer)) => {
                    any_begun |= answer.created;
                    if let Some(watch_id) = ring(&answer, open) {
                        let _ended = stream.out.send(cancel(watch_id));
                    }
                }
                Some(Err(status)) => {
                    wire.stream_ended(stream.generation, Some(&status));
                    return AGAIN;
                }
                None => {
                    wire.stream_ended(stream.generation, None);
                    return AGAIN;
                }
            },
            _new = generations.changed() => {}
        }
    }
    AGAIN
}

/// Tells whoever waits for this. Returns the watch if it has ended and the server still has it.
fn ring(answer: &WatchResponse, open: &mut HashMap<i64, Open>) -> Option<i64> {
    // Whoever waited may have gone.
    if answer.created
        && let Some(begun) = open.get_mut(&answer.watch_id)?.begun.take()
    {
        let _unheard = begun.send(answer.header.as_ref().map_or(0, |header| header.revision));
    }
    if answer.events.is_empty() && !answer.canceled {
        return None;
    }
    let _unheard = open.remove(&answer.watch_id)?.ended.send(());
    (!answer.canceled).then_some(answer.watch_id)
}

fn create(request: WatchCreateRequest) -> WatchRequest {
    WatchRequest { wish: Some(WatchWish::Create(request)) }
}

fn cancel(watch_id: i64) -> WatchRequest {
    WatchRequest { wish: Some(WatchWish::Cancel(WatchCancelRequest { watch_id })) }
}

const WATCH: Method = Method("/etcdserverpb.Watch/Watch");
/// Leaves out puts.
const NO_PUT: i32 = 0;
/// The pause before a stream that ended is opened again.
const AGAIN: Duration = Duration::from_millis(30);
/// The same if the server refuses watches with a fresh token too.
const REFUSED: Duration = Duration::from_secs(1);
