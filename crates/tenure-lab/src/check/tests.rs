//! Each checker on histories that are written as text: what it must find, and what it must not.

use super::liveness::{Cause, Recovery};
use super::*;
use crate::history::Register;
use crate::test_history::{AMNESIA, KILLED, PAUSE, parse};
use crate::verdict::{Judgement, Outcome, Verdict};

const CALM: &str = "
    1 A asked 1
    2 A granted 1 1 1000
    3 B asked 2
    500 A renewed 1 1500
    900 A releasing 1
    901 A released 1 true
    901 B granted 2 2 1900
    950 B releasing 2
    951 B released 2 true";

fn report(lines: &str) -> Report {
    check(&parse("holds", lines))
}

#[test]
fn a_run_without_faults_has_no_findings() {
    let report = report(CALM);
    assert_eq!((report.overlap.certain.count, report.overlap.believed.count), (0, 0));
    assert_eq!(report.overlap.certain.holders, 1);
    assert!(report.tokens.sound());
    assert_eq!((report.linear.broken, report.linear.undecided), (0, 0));
    assert_eq!(report.liveness.worst, Recovery::Soon);
    assert_eq!(Verdict::of(&report), Verdict::Holds);
}

#[test]
fn two_holders_inside_their_deadlines_are_a_certain_overlap() {
    let report = report(&CALM.replace("901 B granted", "300 B granted"));
    assert_eq!(report.overlap.certain.count, 1);
    assert_eq!(report.overlap.certain.total, 600_000_000);
    assert_eq!(report.overlap.certain.first[0].holds, [1, 2]);
    assert_eq!(report.linear.broken, 1);
    assert_eq!(Verdict::of(&report), Verdict::Overlap, "the tokens are sound");
}

#[test]
fn a_second_grant_counts_even_as_the_last_event() {
    let report = report(
        "
        1 A asked 1
        2 A granted 1 1 1000
        3 B asked 2
        4 B granted 2 2 1000",
    );
    assert_eq!((report.overlap.certain.count, report.overlap.certain.holders), (1, 2));
}

#[test]
fn holders_of_two_keys_do_not_overlap() {
    let report = report(
        "
        1 A asked 1 a
        2 A granted 1 1 1000
        3 B asked 2 b
        4 B granted 2 1 1000",
    );
    assert_eq!((report.overlap.certain.count, report.tokens.equal), (0, 0));
}

#[test]
fn a_holder_past_its_deadline_is_no_certain_overlap() {
    let report = check(&parse("overlap", PAUSE));
    assert_eq!(report.overlap.certain.count, 0);
    assert_eq!(report.overlap.believed.total, 312_000_000);
    assert_eq!(report.linear.broken, 0, "the server kept its guarantee");
    assert_eq!(Verdict::of(&report), Verdict::Overlap);
}

#[test]
fn a_renewal_after_the_deadline_does_not_cover_the_time_between() {
    let report = report(
        "
        1 A asked 1
        2 A granted 1 1 100
        3 B asked 2
        150 B granted 2 2 160
        161 B releasing 2
        162 B released 2 true
        200 A renewed 1 300
        250 A releasing 1",
    );
    assert_eq!(report.overlap.certain.count, 0);
    assert_eq!(report.overlap.believed.count, 1);
}

#[test]
fn a_killed_client_holds_nothing() {
    let report = check(&parse("stuck", KILLED));
    assert_eq!(report.overlap.believed.count, 0);
    let gap = report.liveness.gaps.iter().find(|gap| gap.cause == Cause::Ended).unwrap();
    assert_eq!((gap.after, gap.to - gap.from), (Some(1), 1_509_000_000));
    assert_eq!(Verdict::of(&report), Verdict::Stuck);
}

#[test]
fn equal_tokens_are_found() {
    let report = check(&parse("broken", AMNESIA));
    assert_eq!((report.tokens.equal, report.tokens.reversed), (1, 0));
    assert_eq!(report.tokens.first[0].earlier, (1, 2));
    assert_eq!(Verdict::of(&report), Verdict::Broken);
}

#[test]
fn tokens_that_go_back_are_found() {
    let lines = CALM.replace("901 B granted 2 2", "901 B granted 2 0");
    assert_eq!(report(&lines).tokens.reversed, 1);
    // Requested before the first grant: only the whole order shows that it is impossible.
    let report = report(&lines.replace("3 B asked", "1 B asked"));
    assert_eq!((report.tokens.reversed, report.linear.broken), (0, 1));
}

#[test]
fn a_token_below_one_granted_before_the_request_is_found() {
    let report = report(
        "
        1 A asked 1
        2 A granted 1 7 1000
        3 A releasing 1
        4 A released 1 true
        5 B asked 2
        6 B granted 2 6 1000
        7 B releasing 2
        8 B released 2 true",
    );
    assert_eq!((report.tokens.reversed, report.tokens.equal), (1, 0));
    assert_eq!(report.tokens.first[0].later, (2, 6));
}

#[test]
fn registers_count_lost_updates() {
    let report = check(&parse("overlap", PAUSE));
    let lost = |register| report.resource.of(register).lost;
    assert_eq!(lost(Register::Plain), 1);
    assert_eq!(lost(Register::Write), 1, "a fence on writes alone comes too late");
    assert_eq!(lost(Register::ReadWrite), 0);
    assert_eq!(report.resource.read_write.refused, 1);
    assert!(report.control.harmed);
}

#[test]
fn writes_one_after_the_other_lose_nothing() {
    let report = report(
        "
        1 A read 1 plain 1 0 1
        2 A wrote 1 plain 2 1 1
        3 B read 2 plain 3 1 2
        4 B wrote 2 plain 4 2 2",
    );
    let plain = &report.resource.plain;
    assert_eq!((plain.accepted, plain.stale, plain.lost, plain.backwards), (2, 0, 0, 0));
}

#[test]
fn an_accepted_write_with_an_older_token_is_found() {
    let report = report(
        "
        1 A read 1 write 1 0 9
        2 A wrote 1 write 2 1 9
        3 B read 2 write 3 1 8
        4 B wrote 2 write 4 2 8",
    );
    assert_eq!(report.resource.write.backwards, 1);
}

#[test]
fn a_lock_that_is_never_free_again_differs_from_one_that_is_late() {
    // The process was killed between two commands: the key has no expiry.
    let crash = "
        1 A asked 1
        5 lab fault F01 A once A ends between two commands
        6 A ended exit 1
        7 redis seen A -
        10 B asked 2
        9000 B refused 2";
    assert_eq!(Verdict::of(&report(crash)), Verdict::Forever);
    // The server shows an expiry: late, but not never.
    let late = crash.replace("seen A -", "seen A 3600000");
    assert_eq!(Verdict::of(&report(&late)), Verdict::Longer);
    // The observed expiry is not exact: small moves are no renewals.
    let expiries = ["3600000", "3600020", "3600001", "3600030", "3600002", "3600040", "3600003"];
    let seen = expiries.iter().zip(8..).map(|(until, at)| format!("\n{at} redis seen A {until}"));
    let moving = seen.fold(crash.replace("seen A -", "seen A 3600000"), |all, one| all + &one);
    assert_eq!(Verdict::of(&report(&moving)), Verdict::Longer);
    // A watchdog that renews for a client that gets no responses.
    let blind = "
        1 A asked 1
        2 A granted 1 1 2000
        3 B asked 2
        100 lab fault F11 A lasts responses to A are lost
        200 redis seen A 2200
        1200 redis seen A 3200
        2200 redis seen A 4200
        3200 redis seen A 5200
        4200 redis seen A 6200
        8000 B refused 2";
    assert_eq!(Verdict::of(&report(blind)), Verdict::Forever);
}

#[test]
fn a_slow_first_grant_is_not_a_stuck_lock() {
    let slow = "
        1 A asked 1
        5000 A granted 1 1 7000
        5001 A releasing 1
        5002 A released 1 true";
    assert_eq!(Verdict::of(&report(slow)), Verdict::Holds);
    let crash = format!("{slow}\n 2 lab fault F13 redis once a response is lost");
    assert_eq!(Verdict::of(&report(&crash)), Verdict::Longer);
}

#[test]
fn a_polling_client_waits_between_its_requests_too() {
    let report = report(
        "
        1 A asked 1
        2 A granted 1 1 2000
        100 B asked 2
        101 B refused 2
        300 A ended killed
        600 B asked 3
        601 B refused 3
        1990 B asked 4
        2001 B granted 4 2 4000",
    );
    let gap = report.liveness.gaps.iter().find(|gap| gap.cause == Cause::Ended).unwrap();
    assert_eq!((gap.from, gap.to), (300_000_000, 2_001_000_000));
    assert_eq!(gap.recovery, Recovery::Lease);
}

#[test]
fn bypasses_and_waits_are_counted() {
    let report = report(
        "
        1 A asked 1
        2 B asked 2
        3 C asked 3
        4 C granted 3 1 1000
        5 C releasing 3
        6 C released 3 true
        7 B granted 2 2 1000
        8 B releasing 2
        9 B released 2 true
        10 A granted 1 3 1000",
    );
    assert_eq!(report.fairness.bypass, 2, "B and C passed A by");
    assert_eq!(report.fairness.jain, Some(1.0));
    assert_eq!(report.fairness.waits.max, 9_000_000);
}

#[test]
fn a_release_that_confirms_the_lock_of_another_client_has_no_explanation() {
    // DEL without a comparison of the owner: A deletes B's lock, and the release is confirmed.
    let lines = PAUSE.replace("2620 A released 1 false", "2620 A released 1 true");
    assert_eq!(check(&parse("broken", &lines)).linear.broken, 1);
}

#[test]
fn a_run_without_a_lost_unfenced_update_is_inconclusive() {
    let calm = parse("overlap", CALM);
    let judgement = Judgement::of(&calm.header, &check(&calm));
    assert_eq!(judgement.outcome, Outcome::Inconclusive);
    let judge = |expected, lines| {
        let history = parse(expected, lines);
        Judgement::of(&history.header, &check(&history)).outcome
    };
    assert_eq!(judge("overlap", PAUSE), Outcome::AsExpected);
    assert_eq!(judge("holds", PAUSE), Outcome::Differs);
    assert_eq!(judge("broken", PAUSE), Outcome::Differs);
    assert_eq!(judge("holds|stuck", KILLED), Outcome::AsExpected);
    assert_eq!(judge("fine", KILLED), Outcome::Inconclusive);
}

#[test]
fn a_figure_above_its_limit_is_costly() {
    let lines = format!(
        "{CALM}
        960 lab measured commands 3 commands
        960 lab measured limit:_commands 3 commands"
    );
    assert_eq!(Verdict::of(&report(&lines)), Verdict::Holds);
    let lines = lines.replace("measured commands 3", "measured commands 4");
    assert_eq!(Verdict::of(&report(&lines)), Verdict::Costly);
}
