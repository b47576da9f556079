//! The descendants of this process: reaping them, and ending all of them.

use std::io;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};

/// The result of one attempt to reap a child.
#[derive(Debug)]
pub(super) enum Reaped {
    /// This process ended or was stopped.
    Process(Pid, WaitStatus),
    /// There are children, and none of them has changed its state.
    NoChange,
    /// There are no children.
    NoChildren,
}

/// Reaps one child. Orphaned descendants become children of this process
/// (`PR_SET_CHILD_SUBREAPER`), so that this sees all of them in the end.
pub(super) fn reap() -> Reaped {
    match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        Ok(Some((pid, status))) => Reaped::Process(pid, status),
        Ok(None) | Err(rustix::io::Errno::INTR) => Reaped::NoChange,
        Err(_) => Reaped::NoChildren,
    }
}

/// Sends a signal to the command's group, or to the command itself if it has left its group.
pub(super) fn signal(group: Pid, signal: Signal) {
    if kill_process_group(group, signal).is_err() {
        let _already_ended = kill_process(group, signal);
    }
}

/// Kills the command's group and every child of this process, whatever group or session it is in.
/// The children of a killed process become children of this one, so that it takes one call per
/// generation.
pub(super) fn kill_all(group: Option<Pid>) {
    if let Some(group) = group {
        let _already_ended = kill_process_group(group, Signal::KILL);
    }
    for child in children() {
        // A process of another user cannot be killed; `reap` goes on reporting that it exists.
        let _ended_or_not_permitted = kill_process(child, Signal::KILL);
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    children_from_kernel().unwrap_or_else(|_| children_from_scan())
}

fn children_from_kernel() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let list = std::fs::read_to_string(thread?.path().join("children"))?;
        found.extend(list.split_whitespace().filter_map(parse));
    }
    Ok(found)
}

/// For kernels without CONFIG_PROC_CHILDREN, which do not have the file `children`.
fn children_from_scan() -> Vec<Pid> {
    let parent = std::process::id().to_string();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |pid: Pid| {
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        // The name in brackets may contain anything; the state and the parent follow the last one.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&parent)
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
    fn kernel_list_and_scan_both_find_a_child() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let listed = children_from_kernel();
        let scanned = children_from_scan();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(listed.is_err() || listed.unwrap().contains(&pid));
        assert!(scanned.contains(&pid));
    }
}
