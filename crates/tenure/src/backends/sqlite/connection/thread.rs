//! The thread that owns an open store, and the handle by which async code reaches it.
//!
//! Commands are executed one after another in the order in which they were sent. Dropping a future
//! changes nothing: its command is executed, and the response is discarded. `release` relies on
//! this order: no earlier request of a claim can be executed after its release.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::store::OpenStore;
use crate::backend::Claim;
use crate::backends::sqlite::config::Config;
use crate::backends::sqlite::liveness::Session;
use crate::backends::sqlite::wait::{HintWatch, HintWatches, WatchFor};
use crate::error::{Error, ErrorKind, Result};
use crate::support::sync::Mutex;

/// How long there must be no request before maintenance is done.
const IDLE: Duration = Duration::from_millis(5);

/// How long dropping a handle waits for the store to close, which takes about a millisecond.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// Sends commands to the thread of a store. When it is dropped, the thread ends the session.
pub(crate) struct StoreHandle {
    commands: Sender<StoreCommand>,
    waker: Arc<ThreadWaker>,
    last_watch: AtomicU64,
    /// Disconnected when the thread has ended.
    done: Mutex<Receiver<()>>,
}

enum StoreCommand {
    Close,
    Unwatch(u64),
    HintWatch(u64, HintWatch),
    Work(Box<dyn FnOnce(&mut OpenStore) + Send>),
}

impl StoreHandle {
    /// Starts the thread and opens the store on it. Also returns what `describe` makes of the
    /// store.
    pub(crate) async fn start<T: Send + 'static>(
        config: Config,
        describe: impl FnOnce(&OpenStore) -> T + Send + 'static,
    ) -> Result<(StoreHandle, T)> {
        let waker = Arc::new(ThreadWaker::new().map_err(no_thread)?);
        let (commands, queue) = mpsc::channel();
        let (ending, done) = mpsc::channel::<()>();
        let (ready, opened) = oneshot::channel();
        let handle = StoreHandle {
            commands,
            waker: waker.clone(),
            last_watch: AtomicU64::new(0),
            done: Mutex::new(done),
        };
        let main = move || {
            let _ending = ending;
            match OpenStore::open(&config) {
                Ok(store) => {
                    // If the caller was dropped, so was the handle, and `Close` is in the queue.
                    let _ignored = ready.send(Ok(describe(&store)));
                    run(store, &queue, &waker);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("tenure-sqlite".into()).spawn(main).map_err(no_thread)?;
        let described = opened.await.map_err(|_| ended())??;
        Ok((handle, described))
    }

    /// Runs `work` on the store and awaits its response, on any executor.
    pub(crate) async fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut OpenStore) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, response) = oneshot::channel();
        let work = move |store: &mut OpenStore| {
            // The caller may have been dropped.
            let _ignored = reply.send(work(store));
        };
        self.send(StoreCommand::Work(Box::new(work)));
        response.await.map_err(|_| ended())
    }

    /// Waits for a hint about the claim. Dropping the future removes the watch.
    pub(crate) async fn wait(&self, claim: &Claim, wait_for: WatchFor) {
        let id = self.last_watch.fetch_add(1, Ordering::Relaxed) + 1;
        let (fire, fired) = oneshot::channel();
        let watch = HintWatch { key: claim.key.clone(), owner: claim.owner, wait_for, fire };
        self.send(StoreCommand::HintWatch(id, watch));
        let mut registered = RegisteredWatch { handle: self, id, fired: false };
        // If the thread has ended there is nothing to wait for; the next request reports it.
        registered.fired = fired.await.is_ok();
    }

    fn send(&self, command: StoreCommand) {
        // If the thread has ended, the command is dropped, and with it the sender of its response.
        let _ignored = self.commands.send(command);
        self.waker.wake();
    }
}

impl Drop for StoreHandle {
    /// Ends the session in the background. Waits for that a moment, so that a program that ends now
    /// leaves no files behind. Whatever was confirmed is in the file already.
    fn drop(&mut self) {
        self.send(StoreCommand::Close);
        let done = self.done.get_mut();
        let _ignored = done.recv_timeout(CLOSE_TIMEOUT);
    }
}

/// Removes a watch that has not fired when its future is dropped.
struct RegisteredWatch<'a> {
    handle: &'a StoreHandle,
    id: u64,
    fired: bool,
}

impl Drop for RegisteredWatch<'_> {
    fn drop(&mut self) {
        if !self.fired {
            self.handle.send(StoreCommand::Unwatch(self.id));
        }
    }
}

/// The main loop of the thread.
fn run(mut store: OpenStore, queue: &Receiver<StoreCommand>, waker: &ThreadWaker) {
    let mut watches = HintWatches::default();
    loop {
        match queue.try_recv() {
            Ok(StoreCommand::Work(work)) => work(&mut store),
            Ok(StoreCommand::HintWatch(id, watch)) => watches.add(&mut store, id, watch),
            Ok(StoreCommand::Unwatch(id)) => drop(watches.remove(id)),
            Ok(StoreCommand::Close) | Err(TryRecvError::Disconnected) => return store.close(),
            Err(TryRecvError::Empty) => {
                // Maintenance may sync the disk: only if no request follows the last one soon.
                let idle = store.needs_maintenance().then_some(IDLE);
                if sleep(&store, &mut watches, waker, idle) == Woken::ByTime && idle.is_some() {
                    store.run_maintenance();
                }
            }
        }
        watches.deliver_wake_ups(&mut store);
        watches.poll_due(&store);
    }
}

#[derive(PartialEq, Eq)]
enum Woken {
    ByTime,
    ByEvent,
}

/// Sleeps until a command, a wake-up, the end of a holder's process, or the time of the next poll;
/// but at most for `idle`.
fn sleep(
    store: &OpenStore,
    watches: &mut HintWatches,
    waker: &ThreadWaker,
    idle: Option<Duration>,
) -> Woken {
    let next_poll = watches.next_poll().map(|at| at.duration_since(Instant::now()));
    let timeout = next_poll.into_iter().chain(idle).min().map(timespec);
    let mut fds = vec![PollFd::from_borrowed_fd(waker.as_fd(), PollFlags::IN)];
    let socket = store.wake_socket();
    fds.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
    let skip = fds.len();
    let (ids, processes): (Vec<(u64, Session)>, Vec<_>) = watches.processes().unzip();
    fds.extend(processes.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // Interrupted or out of memory: the main loop checks everything and comes back.
    let events = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
    let ended = fds[skip..].iter().zip(ids).filter(|(fd, _)| !fd.revents().is_empty());
    let ended: Vec<_> = ended.map(|(_, id)| id).collect();
    // Before the queue is read: a command that is sent from now on wakes the thread again.
    waker.clear();
    ended.into_iter().for_each(|id| watches.process_ended(store, id));
    if events == 0 { Woken::ByTime } else { Woken::ByEvent }
}

fn timespec(span: Duration) -> Timespec {
    let tv_sec = span.as_secs().try_into().unwrap_or(3600);
    Timespec { tv_sec, tv_nsec: span.subsec_nanos().into() }
}

/// Wakes the thread of the store from any other thread.
struct ThreadWaker {
    #[cfg(target_os = "linux")]
    event: std::os::fd::OwnedFd,
    #[cfg(not(target_os = "linux"))]
    ends: (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream),
}

#[cfg(target_os = "linux")]
impl ThreadWaker {
    fn new() -> std::io::Result<ThreadWaker> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ThreadWaker { event })
    }

    fn wake(&self) {
        // Can fail only if 2^64 wakes are pending, and one is enough.
        let _ignored = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ignored = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(not(target_os = "linux"))]
impl ThreadWaker {
    fn new() -> std::io::Result<ThreadWaker> {
        let ends = std::os::unix::net::UnixStream::pair()?;
        ends.0.set_nonblocking(true)?;
        ends.1.set_nonblocking(true)?;
        Ok(ThreadWaker { ends })
    }

    fn wake(&self) {
        // A full socket wakes as well.
        let _ignored = std::io::Write::write(&mut &self.ends.0, &[1]);
    }

    fn clear(&self) {
        let mut buffer = [0; 256];
        while std::io::Read::read(&mut &self.ends.1, &mut buffer).is_ok_and(|n| n == buffer.len()) {
        }
    }

    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.ends.1.as_fd()
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Internal, "the thread of the sqlite store has ended; connect again")
}

fn no_thread(error: std::io::Error) -> Error {
    let message = "cannot start a thread for the sqlite store";
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
