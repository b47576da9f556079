import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The orders of a pipe. Each line is `verb thread lock [number]`; each is answered by one line when
 * it is done, `thread result`. Locks belong to threads, so that every name has one of its own.
 */
interface Orders {
    /** Does what the words say; the result. */
    String obey(String[] words) throws Exception;

    /** Obeys until the pipe is closed. */
    static void follow(Orders orders) throws IOException {
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        answer("peer", "ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                .execute(() -> answer(words[1], result(orders, words)));
        }
        System.exit(0);
    }

    private static String result(Orders orders, String[] words) {
        try {
            return orders.obey(words);
        } catch (Exception exception) {
            return exception.toString();
        }
    }

    private static void answer(String thread, String result) {
        synchronized (System.out) {
            System.out.println(thread + " " + result);
            System.out.flush();
        }
    }
}
