//! The locks of a job: one set, also of a single key, so that they are acquired, watched and
//! released in one way.

use std::sync::Arc;

use rustix::process::Pid;
use tenure::backend::HolderInfo;
use tenure::{Client, Key, LockSet, Mode};

use super::reporter::Reporter;
use super::{Job, WaitLimit};

/// The locks that the job names, with its settings.
pub(super) fn of_job(
    job: &Job,
    client: &Client,
    launcher: Pid,
    reporter: &Arc<Reporter>,
) -> LockSet {
    let launcher = launcher.as_raw_nonzero().get().unsigned_abs();
    let mut locks: LockSet = job.keys.iter().map(|key| lock(client, key, job.mode)).collect();
    locks = locks.note(HolderInfo::run_note(launcher, &job.note));
    if !matches!(job.wait_limit, WaitLimit::NoWait) {
        let reporter = reporter.clone();
        locks = locks.on_busy(move |busy| reporter.waiting(busy));
    }
    match (job.at_least, job.ttl) {
        // The server must keep the lock for `at_least` even if launcher and supervisor die, so the
        // lease is at least that long. It is renewed as often as a lease of the usual length, so
        // that a loss is detected as soon.
        (Some(at_least), _) => {
            let ttl = job.lease.ttl.max(at_least.min(client.info().max_ttl));
            locks.ttl(ttl).renew_every(job.lease.renew_every)
        }
        (None, Some(ttl)) => locks.ttl(ttl),
        (None, None) => locks,
    }
}

fn lock(client: &Client, key: &Key, mode: Mode) -> LockSet {
    match mode {
        Mode::Permits { take, of } => client.semaphore(key, of.get()).permits(take.get()).into(),
        Mode::Shared => client.lock(key).shared().into(),
        _ => client.lock(key).into(),
    }
}
