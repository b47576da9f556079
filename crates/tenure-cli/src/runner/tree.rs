//! The processes below this one: reaping them, and ending all of them.

use std::io;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};

/// What happened to one process below us, or that there is none left.
#[derive(Debug)]
pub(super) enum Fate {
    /// It ended or was stopped.
    Of(Pid, WaitStatus),
    /// Nothing happened to those that are there.
    Running,
    /// There are none.
    None,
}

/// Reaps one. Orphans from below come to us as well (`PR_SET_CHILD_SUBREAPER`), so that this sees
/// them all in the end.
pub(super) fn reap() -> Fate {
    match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        Ok(Some((pid, status))) => Fate::Of(pid, status),
        Ok(None) | Err(rustix::io::Errno::INTR) => Fate::Running,
        Err(_) => Fate::None,
    }
}

/// Sends a signal to the command's group, or to the command itself if it has left its group.
pub(super) fn signal(group: Pid, signal: Signal) {
    if kill_process_group(group, signal).is_err() {
        // It may have ended: then there is nobody to tell.
        let _ended = kill_process(group, signal);
    }
}

/// Kills the command's group and every child of this process, whatever group or session it is in.
/// Their children come to us when they are dead, so that it takes one call per generation.
pub(super) fn kill_all(group: Option<Pid>) {
    if let Some(group) = group {
        let _ended = kill_process_group(group, Signal::KILL);
    }
    for child in children() {
        // It may have ended; or it may not be ours to kill, and then it goes on being seen by
        // `reap`.
        let _ended_or_foreign = kill_process(child, Signal::KILL);
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    list_of_kernel().unwrap_or_else(|_| search())
}

fn list_of_kernel() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let list = std::fs::read_to_string(thread?.path().join("children"))?;
        found.extend(list.split_whitespace().filter_map(parse));
    }
    Ok(found)
}

/// Kernels without CONFIG_PROC_CHILDREN do not have that list.
fn search() -> Vec<Pid> {
    let me = std::process::id().to_string();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |pid: Pid| {
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        // The name may hold anything; what follows its last bracket is: state, parent.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&me)
    };
    let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| parse(&name)).filter(|pid| is_child(*pid)).collect()
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn both_ways_find_a_child() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (listed, searched) = (list_of_kernel(), search());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(listed.is_err() || listed.unwrap().contains(&pid));
        assert!(searched.contains(&pid));
    }
}
