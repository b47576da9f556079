import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Redisson at the other end of a pipe. Each line is `verb thread key [number]`; each is answered
 * by one line when it is done, `thread result`. A lock of Redisson belongs to a thread, so that
 * every name has one of its own.
 */
public class Peer {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]).setConnectionMinimumIdleSize(2);
        RedissonClient redisson = Redisson.create(config);
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        answer("peer", "ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                .execute(() -> {
                    try {
                        answer(words[1], obey(redisson, words));
                    } catch (Exception exception) {
                        answer(words[1], exception.toString());
                    }
                });
        }
        System.exit(0);
    }

    static String obey(RedissonClient redisson, String[] words) throws Exception {
        RLock lock = redisson.getLock(words[2]);
        switch (words[0]) {
            case "lock":
                lock.lock(60, TimeUnit.SECONDS);
                return "locked";
            case "try":
                return lock.tryLock() ? "locked" : "busy";
            case "unlock":
                lock.unlock();
                return "unlocked";
            case "count":
                // Reads and writes apart, so that only the lock keeps a step from being lost.
                RBucket<String> total = redisson.getBucket("total", StringCodec.INSTANCE);
                for (int step = 0; step < Integer.parseInt(words[3]); step++) {
                    lock.lock();
                    total.set(String.valueOf(Long.parseLong(total.get()) + 1));
                    lock.unlock();
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
