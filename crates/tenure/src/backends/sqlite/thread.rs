//! The thread that owns an open store, and the handle by which async code talks to it.
//!
//! Commands run one after another in the order in which they were sent. A dropped future changes
//! nothing: its command runs, and the answer is thrown away.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::place::Settings;
use super::store::Store;
use super::wait::{Watch, Watches, Wish};
use crate::backend::Claim;
use crate::error::{Error, ErrorKind, Result};

/// Talks to the thread of a store, which ends its session when this is dropped.
pub(super) struct Handle {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    last_watch: AtomicU64,
    /// Disconnected when the thread is done.
    done: Mutex<Receiver<()>>,
}

enum Command {
    Close,
    Unwatch(u64),
    Watch(u64, Watch),
    Work(Box<dyn FnOnce(&mut Store) + Send>),
}

impl Handle {
    /// Starts the thread and opens the store on it. Answers what was made of the opened store, too.
    pub(super) async fn start<T: Send + 'static>(
        settings: Settings,
        describe: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<(Handle, T)> {
        let wake = Arc::new(Wake::new().map_err(no_thread)?);
        let (commands, queue) = mpsc::channel();
        let (ending, done) = mpsc::channel::<()>();
        let (ready, opened) = oneshot::channel();
        let handle = Handle {
            commands,
            wake: wake.clone(),
            last_watch: AtomicU64::new(0),
            done: done.into(),
        };
        let run = move || {
            let _ending = ending;
            match Store::open(&settings) {
                Ok(store) => {
                    // If nobody waits any more, the handle is gone and its farewell in the queue.
                    let _unwanted = ready.send(Ok(describe(&store)));
                    serve(store, &queue, &wake);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("tenure-sqlite".into()).spawn(run).map_err(no_thread)?;
        let described = opened.await.map_err(|_| ended())??;
        Ok((handle, described))
    }

    /// Runs `work` on the store and awaits its answer, on any executor.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let work = move |store: &mut Store| {
            let _unwanted = reply.send(work(store));
        };
        self.send(Command::Work(Box::new(work)));
        answer.await.map_err(|_| ended())
    }

    /// Waits for a hint. Its registration goes with the future.
    pub(super) async fn watch(&self, claim: &Claim, wish: Wish) {
        let id = self.last_watch.fetch_add(1, Ordering::Relaxed) + 1;
        let (fire, fired) = oneshot::channel();
        let watch = Watch { key: claim.key.clone(), owner: claim.owner, wish, fire };
        self.send(Command::Watch(id, watch));
        let mut registered = Registered { handle: self, id, fired: false };
        // Without a thread there is nothing to wait for; the next ask says so.
        registered.fired = fired.await.is_ok();
    }

    fn send(&self, command: Command) {
        // If the thread has ended, the command is dropped, and with it the sender of the answer.
        let _ended = self.commands.send(command);
        self.wake.wake();
    }
}

impl Drop for Handle {
    /// Ends the session in the background. Waits for it a moment, so that a program that ends now
    /// leaves no files behind; whatever was answered is in the store already.
    fn drop(&mut self) {
        self.send(Command::Close);
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _done = done.recv_timeout(FAREWELL);
    }
}

struct Registered<'a> {
    handle: &'a Handle,
    id: u64,
    fired: bool,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if !self.fired {
            self.handle.send(Command::Unwatch(self.id));
        }
    }
}

fn serve(mut store: Store, queue: &Receiver<Command>, wake: &Wake) {
    let mut watches = Watches::default();
    loop {
        match queue.try_recv() {
            Ok(Command::Work(work)) => work(&mut store),
            Ok(Command::Watch(id, watch)) => watches.add(&mut store, id, watch),
            Ok(Command::Unwatch(id)) => drop(watches.remove(id)),
            Ok(Command::Close) | Err(TryRecvError::Disconnected) => return store.close(),
            Err(TryRecvError::Empty) => {
                // Chores may sync the disk: only when nobody comes right behind the last answer.
                let rest = store.has_chores().then_some(REST);
                if sleep(&store, &mut watches, wake, rest) == Woken::NotAtAll && rest.is_some() {
                    store.tidy();
                }
            }
        }
        watches.hear(&mut store);
        watches.look_around(&store);
    }
}

#[derive(PartialEq, Eq)]
enum Woken {
    /// By time alone.
    NotAtAll,
    ByAnEvent,
}

/// Sleeps until a command, a ring, the end of a holder's process, the time for a look, or for
/// `rest`.
fn sleep(store: &Store, watches: &mut Watches, wake: &Wake, rest: Option<Duration>) -> Woken {
    let look = watches.next_look().map(|at| at.duration_since(Instant::now()));
    let timeout = look.into_iter().chain(rest).min().map(timespec);
    let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    fds.extend(store.hung_bell().map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)));
    let skip = fds.len();
    let (ids, processes): (Vec<u64>, Vec<_>) = watches.processes().unzip();
    fds.extend(processes.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // Interrupted or out of memory: the loop looks around and comes back.
    let events = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
    let ended = fds[skip..].iter().zip(ids).filter(|(fd, _)| !fd.revents().is_empty());
    let ended: Vec<u64> = ended.map(|(_, id)| id).collect();
    // Before the queue is read: what is sent from now on wakes us again.
    wake.clear();
    ended.into_iter().for_each(|id| watches.ended(store, id));
    if events == 0 { Woken::NotAtAll } else { Woken::ByAnEvent }
}

fn timespec(span: Duration) -> Timespec {
    let tv_sec = span.as_secs().try_into().unwrap_or(3600);
    Timespec { tv_sec, tv_nsec: span.subsec_nanos().into() }
}

/// Wakes the thread from any other.
struct Wake {
    #[cfg(target_os = "linux")]
    event: std::os::fd::OwnedFd,
    #[cfg(not(target_os = "linux"))]
    ends: (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream),
}

#[cfg(target_os = "linux")]
impl Wake {
    fn new() -> std::io::Result<Wake> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Wake { event })
    }

    fn wake(&self) {
        // Can fail only when 2^64 wakes are pending, and one is enough.
        let _full = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _empty = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(not(target_os = "linux"))]
impl Wake {
    fn new() -> std::io::Result<Wake> {
        let ends = std::os::unix::net::UnixStream::pair()?;
        ends.0.set_nonblocking(true)?;
        ends.1.set_nonblocking(true)?;
        Ok(Wake { ends })
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _full = std::io::Write::write(&mut &self.ends.0, &[1]);
    }

    fn clear(&self) {
        let mut pile = [0; 256];
        while std::io::Read::read(&mut &self.ends.1, &mut pile).is_ok_and(|n| n == pile.len()) {}
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

/// How long nobody has to come before chores are done.
const REST: Duration = Duration::from_millis(5);

/// For how long a dropped store is waited for: closing takes about a millisecond.
const FAREWELL: Duration = Duration::from_millis(50);
