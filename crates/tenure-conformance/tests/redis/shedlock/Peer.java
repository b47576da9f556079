import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.jedis4.JedisLockProvider;
import redis.clients.jedis.JedisPool;

/** ShedLock with its provider for Redis, which follows the orders of a pipe. */
public class Peer {
    static final Map<String, SimpleLock> HELD = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        LockProvider provider = new JedisLockProvider(new JedisPool(System.getenv("TENURE_PEER")));
        Orders.follow(words -> obey(provider, words));
    }

    /** `try thread name lockAtMostFor lockAtLeastFor`, in milliseconds, and `unlock thread name`. */
    static String obey(LockProvider provider, String[] words) {
        switch (words[0]) {
            case "try":
                Optional<SimpleLock> lock = provider.lock(new LockConfiguration(
                    ClockProvider.now(), words[2], millis(words[3]), millis(words[4])));
                lock.ifPresent(held -> HELD.put(words[2], held));
                return lock.isPresent() ? "locked" : "busy";
            case "unlock":
                HELD.remove(words[2]).unlock();
                return "unlocked";
            default:
                return "what is " + words[0] + "?";
        }
    }

    static Duration millis(String text) {
        return Duration.ofMillis(Long.parseLong(text));
    }
}
