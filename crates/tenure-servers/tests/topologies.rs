//! Every topology can be used for a lock, survives `kill -9` and the restart of a member, and keeps
//! its data as its durability promises.

mod cases;
mod suite;

use libtest_mimic::{Arguments, run};

fn main() {
    let mut arguments = Arguments::from_args();
    // Starting servers is mostly waiting, but a machine should not run all of them at once.
    arguments.test_threads.get_or_insert(3);
    let trials = [
        cases::redis::trials(),
        cases::redis_topologies::trials(),
        cases::etcd::trials(),
        cases::zookeeper::trials(),
        cases::consul::trials(),
        cases::sql::trials(),
        cases::foreign_clients::trials(),
    ];
    run(&arguments, trials.into_iter().flatten().collect()).exit();
}
