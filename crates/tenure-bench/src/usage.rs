//! What processes used so far: time on a CPU and context switches, of each of their threads. The
//! kernel counts both exactly, unlike the ticks of 10 ms in `/proc/PID/stat`.

use std::fs;

use anyhow::{Context, Result};

/// What a process used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_us: f64,
    pub(crate) switches: f64,
}

impl Usage {
    /// What this process used, without the processes that it started.
    pub(crate) fn own() -> Result<Usage> {
        Usage::of("self")
    }

    /// What the threads of this process used that have not ended.
    pub(crate) fn of_process(pid: u32) -> Result<Usage> {
        Usage::of(&pid.to_string())
    }

    /// What this process used, and those that it started: a server may have one for each client.
    pub(crate) fn of_tree(pid: u32) -> Result<Usage> {
        let mut sum = Usage::default();
        let mut open = vec![pid];
        while let Some(pid) = open.pop() {
            // A process that ended meanwhile is left out.
            let Ok(usage) = Usage::of_process(pid) else { continue };
            sum.cpu_us += usage.cpu_us;
            sum.switches += usage.switches;
            open.extend(children(pid));
        }
        Ok(sum)
    }

    pub(crate) fn since(&self, before: &Usage) -> Usage {
        Usage { cpu_us: self.cpu_us - before.cpu_us, switches: self.switches - before.switches }
    }

    fn of(process: &str) -> Result<Usage> {
        let mut sum = Usage::default();
        let threads = format!("/proc/{process}/task");
        for thread in fs::read_dir(&threads).with_context(|| threads.clone())? {
            let path = thread?.path();
            // A thread that ended meanwhile is left out.
            let Ok(spent) = fs::read_to_string(path.join("schedstat")) else { continue };
            let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
            let spent = spent.split(' ').next().unwrap_or_default();
            sum.cpu_us += spent.parse::<f64>().context("schedstat")? / 1e3;
            let switches = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
            let switches = switches.filter_map(|line| line.split_whitespace().last());
            sum.switches += switches.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>();
        }
        Ok(sum)
    }
}

/// The processes that the threads of this one started.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    let lists: String = lists.collect::<Vec<_>>().join(" ");
    lists.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The CPU time of the calling thread in µs.
pub(crate) fn this_thread() -> Result<f64> {
    let spent = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(spent.split(' ').next().unwrap_or_default().parse::<f64>().context("schedstat")? / 1e3)
}

/// The memory of this process in bytes.
pub(crate) fn resident() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_this_process_shows() {
        let before = Usage::own().unwrap();
        let mut number = 1_u64;
        // The kernel adds up a thread's time when it is switched or at a tick.
        for _ in 0..20_000_000 {
            number = std::hint::black_box(number.wrapping_mul(7));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        let used = Usage::own().unwrap().since(&before);
        assert!(used.cpu_us > 0.0 && used.switches > 0.0, "{used:?}");
    }
}
