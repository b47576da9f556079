//! Random histories of a correct lock pass every checker; a double hold in them is found. Large
//! histories are checked to the end.

use super::*;
use crate::history::{Event, Header};
use crate::test_random::TestRandom;
use crate::verdict::Verdict;

/// The events of a correct lock with leases: grants one after the other, each after its request,
/// that end in every possible way. `grants` is the number of grants.
fn correct(seed: u64, clients: usize, grants: u64) -> Vec<Event> {
    let mut random = TestRandom::new(seed);
    let mut events = Vec::new();
    let mut waiting: Vec<(u64, String)> = Vec::new();
    let (mut now, mut hold, mut token) = (10, 0, 0);
    let mut idle: Vec<String> = (0..clients).map(|client| format!("c{client}")).collect();
    for _ in 0..grants {
        while waiting.is_empty() || (!idle.is_empty() && random.below(2) == 0) {
            let lane = idle.remove(random.below(idle.len() as u64) as usize);
            hold += 1;
            now += random.below(5);
            let kind = EventKind::Asked { hold, key: "k".into() };
            events.push(Event { at: now, lane: lane.clone(), kind });
            waiting.push((hold, lane));
        }
        let (hold, lane) = waiting.remove(random.below(waiting.len() as u64) as usize);
        token += 1 + random.below(3);
        let granted = now + 1 + random.below(20);
        let mut deadline = granted + 1000;
        let mut add = |at, kind| events.push(Event { at, lane: lane.clone(), kind });
        let grant = EventKind::Granted { hold, token: Some(token), deadline: Some(deadline) };
        add(granted, grant);
        now = granted + 1 + random.below(900);
        if random.below(3) == 0 {
            deadline = now + 1000;
            add(now, EventKind::Renewed { hold, deadline: Some(deadline) });
        }
        now += random.below(90);
        match random.below(4) {
            0 => {
                // The release comes after the deadline, and is too late.
                now = deadline;
                let late = deadline + 1 + random.below(3000);
                add(late, EventKind::Releasing { hold });
                add(late + 1, EventKind::Released { hold, own: Some(false) });
            }
            1 => {
                add(now, EventKind::Releasing { hold });
                now = deadline.max(now + 1);
                add(now + 1, EventKind::Released { hold, own: None });
            }
            _ => {
                add(now, EventKind::Releasing { hold });
                now += 1 + random.below(5);
                add(now, EventKind::Released { hold, own: Some(true) });
            }
        }
        idle.push(lane);
    }
    events
}

fn history(events: Vec<Event>) -> History {
    let header = Header {
        scenario: "random".into(),
        about: String::new(),
        lock: "random".into(),
        server: String::new(),
        seed: 0,
        expected: "holds".into(),
        lease: 1000,
        lanes: Vec::new(),
    };
    History::new(header, events)
}

#[test]
fn random_correct_histories_pass() {
    for seed in 0..300 {
        let clients = 2 + (seed % 7) as usize;
        let report = check(&history(correct(seed, clients, 60)));
        assert_eq!(report.granted, 60);
        assert_eq!(report.overlap.certain.count, 0, "seed {seed}");
        assert!(report.tokens.sound(), "seed {seed}: {:?}", report.tokens);
        assert_eq!(report.linear.broken, 0, "seed {seed}: {:?}", report.linear);
        assert_eq!(report.linear.undecided, 0, "seed {seed}");
    }
}

#[test]
fn an_injected_double_hold_is_found() {
    for seed in 0..300 {
        let mut events = correct(seed, 5, 60);
        let grants: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Granted { .. }))
            .map(|event| event.at)
            .collect();
        // Another client is granted in the middle of a hold, with a token of its own.
        let at = grants[(seed % 59) as usize] + 1;
        let lane = || "intruder".to_owned();
        let (hold, deadline) = (1_000_000, Some(at + 50));
        let asked = EventKind::Asked { hold, key: "k".into() };
        events.push(Event { at: at - 1, lane: lane(), kind: asked });
        let kind = EventKind::Granted { hold, token: Some(1_000_000), deadline };
        events.push(Event { at, lane: lane(), kind });
        let report = check(&history(events));
        assert!(report.overlap.certain.count > 0, "seed {seed}");
        assert!(report.linear.broken + report.linear.undecided > 0, "seed {seed}");
        assert_ne!(Verdict::of(&report), Verdict::Holds, "seed {seed}");
    }
}

#[test]
fn large_histories_are_checked_to_the_end() {
    let history = history(correct(1, 32, 30_000));
    assert!(history.events.len() > 100_000, "{}", history.events.len());
    let begin = std::time::Instant::now();
    let report = check(&history);
    println!("{} events in {:?}", history.events.len(), begin.elapsed());
    assert_eq!((report.linear.broken, report.linear.undecided), (0, 0), "{:?}", report.linear);
}
