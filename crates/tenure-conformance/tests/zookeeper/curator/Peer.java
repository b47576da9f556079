import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Curator at the other end of a pipe. Each line is `verb thread path [number]`; each is answered
 * by one line when it is done, `thread result`. A mutex of Curator belongs to a thread, so that
 * every name has one of its own.
 */
public class Peer {
    static final Map<String, InterProcessMutex> MUTEXES = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        CuratorFramework curator =
            CuratorFrameworkFactory.newClient(arguments[0], 20000, 10000, new RetryOneTime(100));
        curator.start();
        curator.blockUntilConnected();
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        answer("peer", "ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                .execute(() -> {
                    try {
                        answer(words[1], obey(curator, words));
                    } catch (Exception exception) {
                        answer(words[1], exception.toString());
                    }
                });
        }
        System.exit(0);
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

    static synchronized void answer(String thread, String result) {
        System.out.println(thread + " " + result);
        System.out.flush();
    }
}
