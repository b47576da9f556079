import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The locks of Redisson: RLock, RFencedLock, the fair one, and the one for a writer and its readers. */
class Peer {
    /** How many tasks there are for a hot key. */
    private static int hot;

    public static void main(String[] words) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + System.getenv("TENURE_PEER_ADDRESS"));
        String password = System.getenv("TENURE_PEER_PASSWORD");
        if (!password.isEmpty()) {
            config.setPassword(password);
        }
        RedissonClient client = Redisson.create(config);
        String kind = System.getenv("TENURE_PEER_KIND");
        Protocol.serve(key -> {
            String name = kind + "/" + key;
            RLock lock = kind.equals("readers")
                // The first one on a hot key writes, the others read.
                ? key.equals("hot") && hot++ > 0 ? client.getReadWriteLock(name).readLock()
                    : client.getReadWriteLock(name).writeLock()
                : kind.equals("fair") ? client.getFairLock(name)
                : kind.equals("fenced") ? client.getFencedLock(name) : client.getLock(name);
            return new Protocol.Task() {
                @Override
                public void acquire() {
                    lock.lock();
                }

                @Override
                public void release() {
                    lock.unlock();
                }
            };
        });
    }
}
