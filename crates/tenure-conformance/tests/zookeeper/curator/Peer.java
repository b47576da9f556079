import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;

/** Curator, which follows the orders of a pipe. */
public class Peer {
    static final Map<String, InterProcessMutex> MUTEXES = new ConcurrentHashMap<>();
    static final Map<String, Leader> LEADERS = new ConcurrentHashMap<>();
    static final Map<String, Lease> LEASES = new ConcurrentHashMap<>();

    /** Leads from the moment it is elected until it is told to resign. */
    static class Leader extends LeaderSelectorListenerAdapter {
        final CountDownLatch elected = new CountDownLatch(1);
        final CountDownLatch resigned = new CountDownLatch(1);

        @Override
        public void takeLeadership(CuratorFramework curator) throws InterruptedException {
            elected.countDown();
            resigned.await();
        }
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework curator =
            CuratorFrameworkFactory.newClient(System.getenv("TENURE_PEER"), 20000, 10000, new RetryOneTime(100));
        curator.start();
        curator.blockUntilConnected();
        Orders.follow(words -> obey(curator, words));
    }

    static String obey(CuratorFramework curator, String[] words) throws Exception {
        InterProcessMutex mutex = MUTEXES.computeIfAbsent(
            words[1] + " " + words[2], name -> new InterProcessMutex(curator, words[2]));
        switch (words[0]) {
            case "lock":
                mutex.acquire();
                return "locked";
            case "try":
                return mutex.acquire(1, TimeUnit.MILLISECONDS) ? "locked" : "busy";
            case "unlock":
                mutex.release();
                return "unlocked";
            case "lead":
                Leader leader = new Leader();
                LEADERS.put(words[1], leader);
                new LeaderSelector(curator, words[2], leader).start();
                leader.elected.await();
                return "leads";
            case "resign":
                LEADERS.remove(words[1]).resigned.countDown();
                return "resigned";
            case "permit":
                LEASES.put(words[1], new InterProcessSemaphoreV2(curator, words[2], 3).acquire());
                return "permitted";
            case "return":
                LEASES.remove(words[1]).close();
                return "returned";
            case "count":
                // Reads and writes apart, so that only the lock keeps a step from being lost.
                for (int step = 0; step < Integer.parseInt(words[3]); step++) {
                    mutex.acquire();
                    long total = Long.parseLong(new String(curator.getData().forPath("/total")));
                    curator.setData().forPath("/total", Long.toString(total + 1).getBytes());
                    mutex.release();
                }
                return "counted";
            default:
                return "what is " + words[0] + "?";
        }
    }
}
