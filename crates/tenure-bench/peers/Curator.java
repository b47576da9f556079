import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Curator's InterProcessMutex. */
class Peer {
    public static void main(String[] words) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
            System.getenv("TENURE_PEER_ADDRESS"), new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        Protocol.serve(key -> {
            InterProcessMutex mutex = new InterProcessMutex(client, "/curator/" + key);
            return new Protocol.Task() {
                @Override
                public void acquire() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void release() throws Exception {
                    mutex.release();
                }
            };
        });
    }
}
