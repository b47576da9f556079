//! After the command: the lock is kept until `--at-least` has passed since its grant.
//!
//! The others are to find it held, whatever becomes of us. So nothing that is sent to the front
//! shortens that time: a front that is asked to leave, or killed, leaves this process behind, which
//! goes on renewing. And if this process dies as well, the lease at the server is at least as long
//! (see `Keeper::lease`).

use std::time::Duration;

use tenure::Guard;

use super::desk::{Call, Desk};
use super::pair::ToFront;
use super::talk::{self, Talk};
use super::time::{self, Moment};
use super::tree::{self, Fate};
use super::{Ending, sys};

/// Keeps the lock until then, or until it is lost. Whether it was still ours when that began: then
/// the command had it to its end, and a loss is none of the command's.
pub(super) fn keep(
    desk: &mut Desk,
    guard: &Guard,
    talk: &Talk,
    until: Moment,
    ending: &Ending,
) -> bool {
    let left = until.saturating_sub(time::now());
    if left.is_zero() || guard.check().is_err() {
        return false;
    }
    desk.tell(ToFront::Kept(ending.0.into()));
    talk.kept(ending.0, left);
    let mut alone = false;
    while time::now() < until {
        if let Err(lost) = guard.check() {
            let (_, why) = talk::reason(lost.reason());
            talk.warn(&format!("the lock was lost before --at-least had passed: {why}"));
            break;
        }
        if !alone && (desk.asked_to_leave() || !desk.has_front()) {
            alone = true;
            talk.exit(ending.0, ending.1);
            desk.tell(ToFront::Leave(ending.0.into()));
            sys::let_go_of_stderr();
        }
        match desk.next(Some(until)) {
            Ok(Call::Child) => while let Fate::Of(..) = tree::reap() {},
            Ok(_) => {}
            // Without waiting for events there is still the clock.
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
    true
}

const LOOK_AGAIN: Duration = Duration::from_millis(10);
