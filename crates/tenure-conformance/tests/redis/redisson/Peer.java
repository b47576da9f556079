import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson, which follows the orders of a pipe. */
public class Peer {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(System.getenv("TENURE_PEER")).setConnectionMinimumIdleSize(2);
        RedissonClient redisson = Redisson.create(config);
        Orders.follow(words -> obey(redisson, words));
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
}
