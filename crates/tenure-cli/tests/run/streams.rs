//! The descriptors of the command, and processes that it leaves in the background.

use std::process::Command;

use serde_json::Value;

use crate::support::*;

#[test]
fn readers_see_the_end_when_the_command_closes_its_output() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "echo $$; exec >&-; exec sleep 60"]);
    let command = run.number();
    assert_eq!(run.rest(), Vec::<String>::new());
    assert!(is_alive(command));
    assert!(!run.is_over());
}

#[test]
fn other_descriptors_reach_the_command_and_only_it() {
    let store = Store::new();
    // The reader of descriptor 3 sees its end while the command goes on without it.
    let script = "{ \"$@\" 3>&1 >&2 & } | cat; echo closed";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_tenure"), "run", "k", "--"]);
    command.args(["sh", "-c", "echo through >&3; exec 3>&-; echo $$ >pid; exec sleep 60"]);
    command.env("TENURE_URL", store.url()).current_dir(store.folder.path());
    let run = Running::start(&mut command);
    assert_eq!(run.line(), "through");
    assert_eq!(run.line(), "closed");
    let mut pid = 0;
    eventually("the command has written its pid", || {
        let text = std::fs::read_to_string(store.folder.path().join("pid")).unwrap_or_default();
        pid = text.trim().parse().unwrap_or(0);
        pid != 0
    });
    let command = Leftover(pid);
    assert!(is_alive(command.0));
}

#[test]
fn a_command_with_a_closed_reader_ends_by_sigpipe() {
    let store = Store::new();
    let mut run = store.tenure(["run", "k", "--", "yes"]);
    let mut child = run.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn background_children_outlive_the_lock() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "sleep 60 >&- 2>&- & echo $!"]);
    let child = Leftover(run.number());
    assert_eq!(run.code(), 0);
    assert!(is_alive(child.0));
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn orphans_leave_no_zombies() {
    let store = Store::new();
    let script = "(sh -c 'echo $$' & ) ; exec sleep 60";
    let run = store.start(["run", "k", "--", "sh", "-c", script]);
    let orphan = run.number();
    let supervisor = run.supervisor();
    eventually("the orphan is reaped", || state(orphan).is_none());
    assert!(children(supervisor).iter().all(|child| state(*child) != Some('Z')));
}
